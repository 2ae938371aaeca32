"""A run folder as the workers leave it, with small files of every part."""

from __future__ import annotations

import json
from pathlib import Path

from services.checkpoint_folders import marker_bytes
from services.files import file_sum
from shared.layout import RunFolder
from workers.archiver.export_job import RunIdentity

IDENTITY = RunIdentity("run-1", "demo", "c" * 64)


def make_checkpoint(folder: RunFolder, step: int, *, num_bytes: int = 3000) -> Path:
    """A complete checkpoint, with its marker as the trainer writes it."""
    checkpoint = folder.checkpoint(step)
    checkpoint.drafter.mkdir(parents=True)
    (checkpoint.drafter / "config.json").write_text(json.dumps({"step": step}))
    (checkpoint.drafter / "model.safetensors").write_bytes(bytes([step % 256]) * num_bytes)
    (checkpoint.root / "trainer_state.safetensors").write_bytes(b"s" * num_bytes)
    (checkpoint.root / "trainer_state.json").write_text("{}")
    checkpoint.complete_marker.write_bytes(marker_bytes(checkpoint, step))
    return checkpoint.root


def make_run(root: Path) -> RunFolder:
    """Two complete checkpoints (steps 10 and 20), an incomplete one (30), data and logs."""
    folder = RunFolder(root)
    for part in (folder.logs, folder.completions, folder.quarantine, folder.dataset):
        part.mkdir(parents=True)
    folder.run_json.write_text(json.dumps({"id": "run-1", "state": "running"}))
    folder.metrics_jsonl.write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n')
    folder.log("batcher", 0).write_text("ready\n")
    for index in range(3):
        folder.completions_batch(index).write_text(f'{{"seq": {index}}}\n')
    progress = {"completions_done": 3, "completions_failed": 1, "completions_total": 10}
    (folder.completions / "progress.json").write_text(json.dumps(progress))
    (folder.quarantine / "empty.jsonl").write_text('{"seq": 9}\n')
    segments = []
    for index in range(2):
        folder.shard(index).write_bytes(b"ARROW1" + bytes([index]) * 500)
        counts = {"num_samples": 5, "num_tokens": 50}
        one = file_sum(folder.shard(index))
        facts = {"num_bytes": one.num_bytes, "sha256": one.sha256}
        segments.append({"file": folder.shard(index).name, **counts, **facts})
    folder.dataset_json.write_text(json.dumps({"segments": segments}))
    make_checkpoint(folder, 10)
    make_checkpoint(folder, 20)
    make_checkpoint(folder, 30)
    folder.checkpoint(30).complete_marker.unlink()
    return folder


def files_below(root: Path) -> dict[str, bytes]:
    """Path -> content of every regular file below `root`."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
