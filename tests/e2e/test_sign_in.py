"""A control plane with a token: nothing is shown without it, and the page keeps no copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.servers import Server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("locked") / "data", token=TOKEN)
    try:
        started.start()
        yield started
    finally:
        status = started.stop()
    assert status == 0, started.log_end()


def test_signing_in_and_out(locked: Server, open_page: Callable[..., Page]) -> None:
    page = open_page(locked)
    token = page.locator("#token")
    expect(token).to_be_focused()
    expect(page.locator("#preset")).to_have_count(0)

    token.fill("wrong")
    token.press("Enter")
    expect(page.locator(".problem")).to_contain_text("token")
    expect(token).to_be_visible()

    token.fill(TOKEN)
    token.press("Enter")
    expect(page.get_by_text("No runs yet.")).to_be_visible()
    expect(page.locator(".empty pre")).to_contain_text("Authorization: Bearer $DFLASH_MESH_TOKEN")
    kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert TOKEN not in kept + page.url + page.content()
    cookies = page.context.cookies()
    assert cookies
    assert all(one["httpOnly"] and one["sameSite"] == "Strict" for one in cookies)

    page.reload()
    expect(page.get_by_text("No runs yet.")).to_be_visible()
    page.locator("#sign-out").click()
    expect(token).to_be_visible()
    page.reload()
    expect(token).to_be_visible()
