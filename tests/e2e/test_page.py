"""The page without a live run: empty and error states, markup, width, theme, keys, silence."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.filled_data import BLOCK_CAUSE, BLOCK_REASON, LONG, MARKUP, RUN_ID, STOPPED_ID, fill
from tests.e2e.servers import ROOT, Server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
OpenPage = Callable[..., Page]
RUN_PATH = f"/#/runs/{RUN_ID}"
RUN_LINK = f".runs tr[data-key='{RUN_ID}'] a"
STOPPED_PATH = f"/#/runs/{STOPPED_ID}"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("filled") / "data"
    fill(folder)
    started = Server(folder)
    try:
        started.start()
        yield started
    finally:
        status = started.stop()
    assert status == 0, started.log_end()


def test_without_runs_the_page_says_how_to_start_one(server: Server, open_page: OpenPage) -> None:
    page = open_page(server)
    expect(page.get_by_text("No runs yet.")).to_be_visible()
    command = page.locator(".empty pre")
    expect(command).to_contain_text(f"{server.url}/v1/runs")
    expect(command).to_contain_text("curl")


def test_wrong_overrides_name_each_field_and_suggest(server: Server, open_page: OpenPage) -> None:
    page = open_page(server)
    lines = ("trainer.learning_rat = 1", "train.num_epoch = 2", "seed = <b>x</b>")
    page.locator("#overrides").fill("\n".join(lines))
    page.locator("#start").click()
    problem = page.locator(".problem")
    expect(problem).to_contain_text("train.num_epoch")
    expect(problem).to_contain_text("did you mean")
    expect(problem).to_contain_text("num_epochs")
    expect(problem).to_contain_text("trainer.learning_rat")
    assert page.locator(".problem b").count() == 0
    assert server.get("/v1/runs")["items"] == []


def test_an_override_without_a_value_is_explained(server: Server, open_page: OpenPage) -> None:
    page = open_page(server)
    page.locator("#overrides").fill("<i>no value</i>")
    page.locator("#start").click()
    expect(page.locator(".problem")).to_contain_text('"<i>no value</i>" is not key = value')


def test_an_error_goes_when_the_request_changes(server: Server, open_page: OpenPage) -> None:
    page = open_page(server)
    page.locator("#overrides").fill("no value")
    page.locator("#start").click()
    expect(page.locator(".problem strong")).to_have_text("An override cannot be read")
    page.locator("#overrides").fill("")
    expect(page.locator(".problem")).to_have_count(0)
    page.locator("#overrides").fill("target.path = nowhere/model")
    page.locator("#start").click()
    # A relative path counts from the control plane's folder, which the message shows.
    expect(page.locator(".problem")).to_contain_text(str(ROOT / "nowhere" / "model"))
    page.locator("#preset").select_option("smollm2-135m")
    expect(page.locator(".problem")).to_have_count(0)


def test_the_forecast_starts_nothing(server: Server, open_page: OpenPage) -> None:
    page = open_page(server)
    page.get_by_role("button", name="Forecast").click()
    expect(page.locator(".forecast")).to_contain_text("Optimizer steps")
    expect(page.locator(".forecast")).to_contain_text("Trainer in memory")
    page.locator("#accelerator").select_option("h200")
    expect(page.locator(".forecast")).to_have_count(0)
    page.get_by_role("button", name="Forecast").click()
    for row in ("Training", "Cost", "GPUs"):
        expect(page.locator(".forecast dt").get_by_text(row, exact=True)).to_be_visible()
    assert server.get("/v1/runs")["items"] == []


def test_a_command_names_a_token_only_where_one_is_needed(
    server: Server, open_page: OpenPage
) -> None:
    page = open_page(server, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.locator("#toast")).to_have_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    assert f"{server.url}/v1/runs" in command and "Authorization" not in command


def test_an_unknown_run_is_an_error_with_a_way_back(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "/#/runs/none")
    expect(page.locator(".problem")).to_contain_text("there is no run")
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_text("No runs yet.")).to_be_visible()


def test_markup_in_names_reasons_errors_and_logs_is_text(
    filled: Server, open_page: OpenPage
) -> None:
    page = open_page(filled)
    expect(page.locator(RUN_LINK)).to_have_text(MARKUP)
    page.locator(RUN_LINK).click()
    expect(page.locator("h1")).to_have_text(MARKUP)
    expect(page.locator(".bottleneck")).to_have_text(MARKUP)
    expect(page.locator(".log li.error span")).to_contain_text(MARKUP)
    expect(page.locator("[data-worker=generator-0] .error-text")).to_contain_text(MARKUP)
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.broken === undefined")
    assert page.title() != "broken"


def test_the_generators_requests_and_servers_are_shown(filled: Server, open_page: OpenPage) -> None:
    page = open_page(filled)
    page.locator(RUN_LINK).click()
    note = page.locator('.stage[data-role="generator"] small')
    expect(note).to_contain_text("60 / 64 requests")
    expect(note).to_contain_text("server 0: 58 + 3")


def test_a_stopped_run_shows_what_it_came_to(filled: Server, open_page: OpenPage) -> None:
    page = open_page(filled, STOPPED_PATH)
    expect(page.locator("#run-state")).to_have_text("stopped")
    expect(page.locator(".reason")).to_be_hidden()
    expect(page.locator(".stage-name")).to_have_text("")
    expect(page.locator(".tile", has_text="Step")).to_contain_text("epoch 3 of 4")
    expect(page.locator("[data-worker]")).to_have_count(2)
    expect(page.locator("[data-worker=evaluator-0]")).to_contain_text("exited")
    expect(page.locator(".problem p")).to_have_text(f"{BLOCK_REASON}. {BLOCK_CAUSE}")
    lengths = page.locator("tr[data-evaluation=completed] .number")
    shown = ["3.17 on 32 prompts", "2.95 on 4 prompts", "1.02", "1.31"]
    expect(lengths).to_have_text(["56", *shown, "29 / 32"])
    expect(page.locator("tr[data-key='56'] td").first).to_have_text("3 of 4")


def test_the_ticks_of_a_time_axis_differ(filled: Server, open_page: OpenPage) -> None:
    page = open_page(filled, STOPPED_PATH)
    expect(page.locator(".plot canvas")).to_have_count(1)
    shown = page.evaluate(
        """async () => {
            const { timeTick, TIME_STEPS_S } = await import('./js/time_axis.js');
            const eight = [...Array(8).keys()];
            const ticks = (step, from) => eight.map((i) => timeTick(from + i * step));
            return TIME_STEPS_S.flatMap((step) => [0, 100 * step].map((from) => ticks(step, from)));
        }"""
    )
    assert all(len(set(ticks)) == len(ticks) for ticks in shown)
    assert ["0 s", "20 s", "40 s", "1:00", "1:20", "1:40", "2:00", "2:20"] in shown


def test_a_phones_list_shows_name_and_link_first(filled: Server, open_page: OpenPage) -> None:
    page = open_page(filled, viewport={"width": 390, "height": 840}, has_touch=True)
    table = page.locator(".scroll", has=page.locator(".runs"))
    link = page.get_by_role("link", name="plain")
    link.scroll_into_view_if_needed()
    expect(link).to_be_in_viewport(ratio=1)
    assert table.evaluate("node => node.scrollWidth <= node.clientWidth")


@pytest.mark.parametrize("path", ["/", RUN_PATH, STOPPED_PATH])
def test_a_phone_has_no_sideways_scrolling(filled: Server, open_page: OpenPage, path: str) -> None:
    page = open_page(filled, path, viewport={"width": 360, "height": 740}, has_touch=True)
    name = "plain" if path == STOPPED_PATH else "<img"
    expect(page.locator(f"h1, {RUN_LINK}").get_by_text(name).first).to_be_visible()
    if path == RUN_PATH:
        expect(page.locator(".log li").first).to_contain_text(LONG)
        expect(page.locator(".plot canvas")).to_have_count(1)
        expect(page.locator(".plot .empty:visible")).to_have_text(["no data yet"] * 4)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= page.evaluate("innerWidth")


def test_the_theme_follows_the_system_until_chosen(filled: Server, open_page: OpenPage) -> None:
    page = open_page(filled, RUN_PATH, color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(paper)
    assert dark != light
    page.locator("#theme").click()
    assert page.evaluate(paper) == light
    page.reload()
    assert page.evaluate(paper) == light
    page.keyboard.press("t")
    assert page.evaluate(paper) == dark


def test_the_keyboard_reaches_everything(filled: Server, open_page: OpenPage) -> None:
    page = open_page(filled, RUN_PATH)
    expect(page.locator("h1")).to_have_text(MARKUP)
    page.keyboard.press("?")
    expect(page.locator("dialog[open]")).to_contain_text("start a run")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    page.keyboard.press("n")
    expect(page.locator("#preset")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#overrides")).to_be_focused()
    page.keyboard.type("train.num_epoch = 2")
    page.keyboard.press("Tab")
    expect(page.locator("#accelerator")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#start")).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    expect(page.locator(".problem")).to_contain_text("num_epochs")


def test_the_run_page_says_when_its_figures_are_old(filled: Server, open_page: OpenPage) -> None:
    page = open_page(filled, RUN_PATH)
    link = page.locator("#link-state")
    expect(link).to_have_text("live")
    filled.signal(signal.SIGSTOP)
    try:
        expect(link).to_contain_text(re.compile("figures are old"), timeout=20_000)
        expect(page.locator("body")).to_have_class("stale")
    finally:
        filled.signal(signal.SIGCONT)
    expect(link).to_have_text("live", timeout=20_000)
    expect(page.locator("body")).not_to_have_class("stale")


def test_the_list_says_when_the_control_plane_is_away(filled: Server, open_page: OpenPage) -> None:
    page = open_page(filled)
    link = page.locator("#link-state")
    expect(page.locator(RUN_LINK)).to_have_text(MARKUP)
    filled.signal(signal.SIGSTOP)
    try:
        expect(link).to_have_text("The control plane does not answer.", timeout=20_000)
    finally:
        filled.signal(signal.SIGCONT)
    expect(link).to_have_text("", timeout=20_000)


def test_a_page_left_open_survives_a_restart(filled: Server, open_page: OpenPage) -> None:
    page = open_page(filled, RUN_PATH)
    link = page.locator("#link-state")
    expect(link).to_have_text("live")
    assert filled.stop() == 0
    expect(link).to_contain_text("away", timeout=20_000)
    filled.start()
    expect(link).to_have_text("live", timeout=20_000)
