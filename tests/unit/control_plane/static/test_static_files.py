"""What the page is made of: known vendored files, nothing from elsewhere, nothing inline."""

from __future__ import annotations

import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from control_plane.cli.plans import PLAN_ROWS
from control_plane.static_pages import STATIC_FOLDER
from shared.config import preset_names
from shared.forecast import gpu_table

VENDOR = STATIC_FOLDER / "vendor"
OWN = sorted(
    path
    for path in STATIC_FOLDER.rglob("*")
    if path.suffix in {".html", ".css", ".js", ".svg"} and path.parent != VENDOR
)
NAMESPACE = "http://www.w3.org/2000/svg"


def test_vendored_files_match_their_checksums() -> None:
    lines = (VENDOR / "uPlot.sha256").read_text().split("\n")
    listed = dict(reversed(line.split()) for line in lines if line)
    assert set(listed) == {path.name for path in VENDOR.iterdir() if path.suffix in {".js", ".css"}}
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_the_vendored_licence_is_there() -> None:
    text = (VENDOR / "uPlot.LICENSE").read_text()
    assert "MIT" in text
    assert "Leon Sorokin" in text


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_address_of_another_host(path: Path) -> None:
    text = path.read_text().replace(NAMESPACE, "")
    assert not re.findall(r"\b(?:https?|wss?)://\S*|[\"'(]//\w\S*|@import\b.*", text)


@pytest.mark.parametrize("path", [p for p in OWN if p.suffix == ".js"], ids=lambda path: path.name)
def test_scripts_set_text_and_never_markup(path: Path) -> None:
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert not re.findall(markup, path.read_text())


class _Inline(HTMLParser):
    """Collects what a strict Content-Security-Policy would refuse, and what the page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.refused += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and not given.get("src")):
            self.refused.append(tag)
        loads = given.get("src") or (given.get("href") if tag == "link" else None)
        if loads:
            self.loaded.append(loads)


def test_index_has_nothing_inline_and_all_it_loads_is_packaged() -> None:
    parser = _Inline()
    parser.feed((STATIC_FOLDER / "index.html").read_text())
    assert parser.refused == []
    assert parser.loaded
    assert [name for name in parser.loaded if not (STATIC_FOLDER / name).is_file()] == []


def test_the_forecast_offers_every_accelerator_and_every_row_of_the_plan() -> None:
    text = (STATIC_FOLDER / "js" / "forecast.js").read_text()
    listed = re.search(r"ACCELERATORS = \[(.*?)\]", text)
    assert listed is not None
    assert re.findall(r'"(.*?)"', listed[1]) == ["", *gpu_table()]
    assert re.findall(r'^  \[".+?", "(\w+)"', text, re.M) == [key for _, key in PLAN_ROWS]


def test_the_form_offers_every_preset() -> None:
    text = (STATIC_FOLDER / "js" / "start_form.js").read_text()
    listed = re.search(r"PRESETS = \[(.*?)\]", text)
    assert listed is not None
    assert sorted(re.findall(r'"(.+?)"', listed[1])) == sorted(preset_names())


def test_every_imported_module_is_packaged() -> None:
    for path in (STATIC_FOLDER / "js").glob("*.js"):
        for name in re.findall(r"^import .*? from \"(.+?)\";$", path.read_text(), re.M):
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"
