"""A real Chromium, and pages that fail the test when the browser complains or calls elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.servers import Server

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# What a browser says by itself about answers that a test asks for: 401 and 422 are not faults.
EXPECTED = ("Failed to load resource",)


def _chromium() -> str | None:
    named = os.environ.get("DFLASH_MESH_CHROMIUM")
    if named:
        return named
    return shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = _chromium()
    if executable is None or not Path(executable).exists():
        text = f"no Chromium at {executable or '/usr/bin/chromium'}; set DFLASH_MESH_CHROMIUM"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages of a server; at the end: no console error, and no request to another origin."""
    said: list[str] = []
    asked: list[tuple[str, str]] = []
    contexts = []

    def opened(server: Server, path: str = "/", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: asked.append((server.url, request.url)))
        page.goto(server.url + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    strange = [text for text in said if not text.startswith(EXPECTED)]
    assert not strange, f"the browser's console: {strange}"
    elsewhere = [url for own, url in asked if not url.startswith((own + "/", "data:", "blob:"))]
    assert not elsewhere, f"requests to other hosts: {elsewhere}"
    assert asked, "no request was seen"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A control plane on an empty data folder."""
    started = Server(tmp_path_factory.mktemp("e2e") / "data")
    try:
        started.start()
        yield started
    finally:
        status = started.stop()
    assert status == 0, started.log_end()
