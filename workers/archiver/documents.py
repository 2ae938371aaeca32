"""PROGRESS.md and hardware.json of a run folder, and the figures that PROGRESS.md tells.

`read_facts` looks at the folder only, so the document says what is there, not what somebody
believes. `render` is pure. A file is rewritten only when its content changes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.checkpoint_folders import complete_checkpoints
from services.files import write_file, write_json
from services.hardware import probe, summary
from shared.layout import RunFolder
from shared.units import format_bytes

logger = logging.getLogger(__name__)
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class RunFacts:
    """What a run folder holds, in figures; None where the run has not got there."""

    name: str
    run_id: str
    state: str | None
    reason: str | None
    config_sha256: str | None
    target: str | None
    machine: str | None
    completions: dict[str, Any] | None
    num_segments: int | None
    num_samples: int | None
    num_tokens: int | None
    quarantined: dict[str, int]
    last_metrics: dict[str, Any] | None
    num_epochs: int | None
    checkpoints: list[tuple[int, int]]  # (step, bytes), oldest first
    evaluations: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


@dataclass(frozen=True)
class ArchiveFacts:
    """How far the continuous archive is."""

    destination: str
    num_files: int
    num_bytes: int
    backlog_files: int
    backlog_bytes: int
    problem: str | None


def record_hardware(folder: RunFolder) -> None:
    """Write hardware.json unless it is there for this host; blocking."""
    there = _read_json(folder.hardware_json)
    record = probe(folder.root)
    if there is None or there.get("host") != record["host"] or there.get("gpus") != record["gpus"]:
        write_json(folder.hardware_json, record)


def read_facts(folder: RunFolder, run_id: str, name: str) -> RunFacts:
    """Look at the folder; blocking."""
    run = _read_json(folder.run_json) or {}
    dataset = _read_json(folder.dataset_json)
    segments: list[dict[str, Any]] | None = dataset.get("segments") if dataset else None
    hardware = _read_json(folder.hardware_json)
    return RunFacts(
        name=name,
        run_id=run_id,
        state=run.get("state"),
        reason=run.get("reason"),
        config_sha256=run.get("config_sha256"),
        target=_configured(run, "target", "path"),
        machine=summary(hardware) if hardware else None,
        completions=_read_json(folder.completions / "progress.json"),
        num_segments=None if segments is None else len(segments),
        num_samples=_total(segments, "num_samples"),
        num_tokens=_total(segments, "num_tokens"),
        quarantined=_line_counts(folder.quarantine),
        last_metrics=_last_line(folder.metrics_jsonl),
        num_epochs=_configured(run, "train", "num_epochs"),
        checkpoints=[
            (checkpoint.step, checkpoint.num_bytes) for checkpoint in complete_checkpoints(folder)
        ],
        evaluations=[
            (path.stem, content)
            for path in sorted(folder.evaluations.glob("*.json"))
            if (content := _read_json(path)) is not None
        ],
    )


def render(facts: RunFacts, archive: ArchiveFacts | None) -> str:
    """PROGRESS.md."""
    lines = [f"# {facts.name} ({facts.run_id})", ""]
    if facts.state:
        reason = f": {facts.reason}" if facts.reason not in (None, "", facts.state) else ""
        lines.append(f"- State: {facts.state}{reason}")
    if facts.target:
        lines.append(f"- Target: {facts.target}")
    if facts.config_sha256:
        lines.append(f"- Configuration: sha256 {facts.config_sha256}")
    if facts.machine:
        lines.append(f"- Machine: {facts.machine}")
    lines += ["", "## Data", ""]
    lines += _data_lines(facts)
    lines += ["", "## Training", ""]
    lines += _training_lines(facts)
    if facts.evaluations:
        lines += ["", "## Evaluations", ""]
        lines += [_evaluation_line(name, result) for name, result in facts.evaluations]
    if archive is not None:
        lines += ["", "## Archive", ""]
        lines += _archive_lines(archive)
    return "\n".join(lines) + "\n"


def write_progress(folder: RunFolder, run_id: str, name: str, archive: ArchiveFacts | None) -> None:
    """Bring PROGRESS.md up to date; blocking."""
    text = render(read_facts(folder, run_id, name), archive)
    if not folder.progress_md.exists() or folder.progress_md.read_text("utf-8") != text:
        write_file(folder.progress_md, text)


def _data_lines(facts: RunFacts) -> list[str]:
    lines = []
    if facts.completions:
        done = facts.completions.get("completions_done", 0)
        total = facts.completions.get("completions_total", 0)
        failed = facts.completions.get("completions_failed", 0)
        lines.append(f"- Completions: {done} of {total}, {failed} failed")
    if facts.num_segments is not None:
        lines.append(
            f"- Samples accepted: {facts.num_samples} in {facts.num_segments} shards, "
            f"{facts.num_tokens} tokens"
        )
    lines += [
        f"- Quarantined, {reason}: {count}" for reason, count in sorted(facts.quarantined.items())
    ]
    return lines or ["- Nothing yet"]


def _training_lines(facts: RunFacts) -> list[str]:
    lines = []
    if facts.last_metrics:
        shown = [
            f"{name} {facts.last_metrics[name]:.4g}"
            for name in ("step", "loss", "accuracy", "lr")
            if isinstance(facts.last_metrics.get(name), int | float)
        ]
        if isinstance(epoch := facts.last_metrics.get("epoch"), int):
            total = f" of {facts.num_epochs}" if facts.num_epochs else ""
            shown.insert(1, f"epoch {epoch + 1}{total}")
        lines.append(f"- Last step written: {', '.join(shown)}")
    lines += [
        f"- Checkpoint at step {step}: {format_bytes(size)}" for step, size in facts.checkpoints
    ]
    return lines or ["- Nothing yet"]


def _evaluation_line(name: str, result: dict[str, Any]) -> str:
    """The measured length, and beside the baselines the drafter's own on their few prompts."""
    line = f"- {name}: acceptance length {_length(result.get('acceptance_length'))}"
    if result.get("num_prompts"):
        line += f" on {result['num_prompts']} prompts"
    line += f" at step {result.get('checkpoint_step')}"
    if not result.get("baselines"):
        return line
    others = ", ".join(
        f"{_length(length)} {baseline.replace('_', ' ')}"
        for baseline, length in sorted(result["baselines"].items(), reverse=True)
    )
    own = _length(result.get("acceptance_length_on_baseline_prompts"))
    return f"{line}; on {result.get('baselines_num_prompts')} of them {own} beside {others}"


def _length(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "unknown"


def _archive_lines(archive: ArchiveFacts) -> list[str]:
    lines = [
        f"- Destination: {archive.destination}",
        f"- Verified there: {archive.num_files} files, {format_bytes(archive.num_bytes)}",
        f"- Waiting: {archive.backlog_files} files, {format_bytes(archive.backlog_bytes)}",
    ]
    if archive.problem:
        lines.append(f"- Held up: {archive.problem}")
    return lines


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        logger.warning("%s cannot be read: %s", path.name, error)
        return None
    return value if isinstance(value, dict) else None


def _configured(run: dict[str, Any], section: str, field: str) -> Any:
    """A field of the configuration in run.json; None where there is none."""
    return ((run.get("config") or {}).get(section) or {}).get(field)


def _total(segments: Sequence[dict[str, Any]] | None, name: str) -> int | None:
    return None if segments is None else sum(int(segment.get(name, 0)) for segment in segments)


def _line_counts(folder: Path) -> dict[str, int]:
    counts = {}
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            counts[path.stem] = sum(1 for _ in file)
    return counts


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of a JSONL file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
        value = json.loads(lines[-1]) if lines else None
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None
