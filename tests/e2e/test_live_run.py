"""One run on the tiny target, from the start form to the export, all of it through the page."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.servers import Server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
SMALL = """\
data.num_prompts = 96
train.num_epochs = 2
generator.group_size = 16
batcher.segment_samples = 16
trainer.checkpoint_every_steps = 40
evaluate.num_prompts = 4
evaluate.baselines = false
supervision.heartbeat_s = 0.5
supervision.backoff_s = 0.2
"""
MINUTE_MS = 60_000


def next_step(page: Page, after: int) -> int:
    """The step that the page shows once it is past `after`."""
    figure = page.locator("[data-figure=step]")
    expect(figure).to_have_text(re.compile(r"^[\d,]+ / [\d,]+$"), timeout=MINUTE_MS)
    while (step := _step(figure)) <= after:
        shown = figure.inner_text()
        expect(figure).not_to_have_text(shown, timeout=MINUTE_MS)
    return step


def _step(figure: Locator) -> int:
    return int(figure.inner_text().split(" / ")[0].replace(",", ""))


def inked_pixels(page: Page, plot: str, colour: str | None = None) -> int:
    """Pixels that the plot's canvas has drawn on, of one of the style sheet's colours or any."""
    found: int = (
        page.locator(".plot", has_text=plot)
        .locator("canvas")
        .evaluate(
            """(canvas, colour) => {
            const context = canvas.getContext('2d');
            let wanted = null;
            if (colour) {
                const style = getComputedStyle(document.documentElement);
                const hex = style.getPropertyValue('--' + colour).trim();
                wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
            }
            const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
            let inked = 0;
            for (let i = 0; i < data.length; i += 4) {
                const near = (part, k) => Math.abs(part - data[i + k]) < 8;
                if (data[i + 3] > 0 && (!wanted || wanted.every(near))) inked += 1;
            }
            return inked;
        }""",
            colour,
        )
    )
    return found


def test_a_run_from_start_to_export(server: Server, open_page: Callable[..., Page]) -> None:
    page = open_page(server, permissions=["clipboard-read", "clipboard-write"])
    state = page.locator("#run-state")

    page.locator("#preset").select_option("demo")
    page.locator("#overrides").fill(SMALL)
    page.locator("#start").click()
    page.wait_for_url(re.compile(r"#/runs/.+"))
    run_id = page.url.rsplit("/", 1)[1]
    expect(state).to_have_text("running", timeout=MINUTE_MS)
    expect(page.locator("#link-state")).to_have_text("live")

    # Numbers move.
    seen = next_step(page, 0)
    seen = next_step(page, seen)
    for queue in ("completions", "batches", "hidden_states"):
        depth = page.locator(f"[data-queue={queue}] .depth")
        expect(depth).to_have_text(re.compile(r"^\d+ / [1-9]\d*$"))
    expect(page.locator("[data-role=drafter_trainer] .figure")).not_to_have_text("0")
    expect(page.locator("[data-figure=loss]")).to_have_text(re.compile(r"^\d+\.\d+$"))
    expect(page.locator(".plot canvas")).to_have_count(5)
    for plot, colour in (("Loss", "accent"), ("Accuracy", "good"), ("Ktok/s by stage", "warm")):
        assert inked_pixels(page, plot, colour) > 20, plot
    expect(page.locator(".log li").first).to_be_visible()

    # A worker dies and comes back.
    forward = page.locator("[data-worker=target_forward-0]")
    pid = int(forward.get_attribute("data-pid") or 0)
    os.kill(pid, signal.SIGKILL)
    expect(forward.locator(".restarts")).to_have_text("1", timeout=MINUTE_MS)
    expect(forward).not_to_have_attribute("data-pid", str(pid), timeout=MINUTE_MS)
    seen = next_step(page, seen)

    page.locator("[data-action=pause]").click()
    expect(state).to_have_text("paused", timeout=MINUTE_MS)
    expect(page.locator(".reason")).to_be_hidden()
    at_work = page.locator("[data-worker] .pill.running, [data-worker] .pill.starting")
    expect(at_work).to_have_count(0, timeout=MINUTE_MS)
    page.locator("[data-action=resume]").click()
    expect(state).to_have_text("running", timeout=MINUTE_MS)
    next_step(page, seen)

    page.get_by_role("button", name="Stop as curl").click()
    expect(page.locator("#toast")).to_have_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    assert command.startswith("curl ")
    assert f"{server.url}/v1/runs/{run_id}/stop" in command

    # With the news of the end come its last figures, and no stage.

    expect(state).to_have_text("completed", timeout=2 * MINUTE_MS)
    last = server.get(f"/v1/runs/{run_id}")
    assert last["progress"]["step"] == last["progress"]["steps_total"] > 0
    expect(page.locator("[data-figure=step]")).to_have_text(
        f"{last['progress']['step']:,} / {last['progress']['steps_total']:,}"
    )
    expect(page.locator("[data-figure=loss]")).to_have_text(f"{last['loss']:.3f}")
    expect(page.locator(".stage-name")).to_have_text("")
    expect(page.locator("[data-worker=evaluator-0]")).to_contain_text("exited")
    expect(page.locator("[data-figure=acceptance]")).to_have_text(re.compile(r"^[1-9]\d*\.\d\d$"))
    expect(page.locator("tr[data-evaluation=completed]").first).to_contain_text("equal")
    page.reload()
    expect(state).to_have_text("completed")
    expect(page.locator(".plot canvas")).to_have_count(5)
    assert inked_pixels(page, "Acceptance length", "warm") > 10

    target = server.folder / "export"
    page.locator("#destination").fill(target.as_uri())
    page.locator("[data-action=export]").click()
    card = page.locator("[data-export]")
    expect(card).to_have_attribute("data-state", "completed", timeout=MINUTE_MS)
    expect(card).to_contain_text("manifest sha256")
    assert exported(target)


def exported(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))
