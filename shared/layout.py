"""Where the files of a data folder and of a run lie. Pure paths; nothing is created here.

DATA/control_plane.sqlite
DATA/runs/ID/run.json  target.json  hardware.json  PROGRESS.md  metrics.jsonl  manifest.json
DATA/runs/ID/logs/ROLE-RANK.log
DATA/runs/ID/completions/batch_000000.jsonl  progress.json  done_index  failures.jsonl
DATA/runs/ID/quarantine/REASON.jsonl
DATA/runs/ID/dataset/shard_00000.arrow  dataset.json
DATA/runs/ID/checkpoints/step_00015000/{drafter/, trainer_state.*, COMPLETE}
DATA/runs/ID/evaluations/ID.json
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_CHECKPOINT = re.compile(r"^step_(\d{8})$")


@dataclass(frozen=True)
class DataFolder:
    """The control plane's data folder."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "control_plane.sqlite"

    @property
    def lock(self) -> Path:
        return self.root / "control_plane.lock"

    @property
    def backups(self) -> Path:
        return self.root / "backups"

    def run(self, run_id: str) -> RunFolder:
        return RunFolder(self.root / "runs" / run_id)


@dataclass(frozen=True)
class RunFolder:
    """One run's folder."""

    root: Path

    @property
    def run_json(self) -> Path:
        return self.root / "run.json"

    @property
    def target_json(self) -> Path:
        return self.root / "target.json"

    @property
    def hardware_json(self) -> Path:
        return self.root / "hardware.json"

    @property
    def progress_md(self) -> Path:
        return self.root / "PROGRESS.md"

    @property
    def metrics_jsonl(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def manifest_json(self) -> Path:
        return self.root / "manifest.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, role: str, rank: int) -> Path:
        return self.logs / f"{role}-{rank}.log"

    @property
    def completions(self) -> Path:
        return self.root / "completions"

    def completions_batch(self, index: int) -> Path:
        return self.completions / f"batch_{index:06d}.jsonl"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    @property
    def dataset(self) -> Path:
        return self.root / "dataset"

    def shard(self, index: int) -> Path:
        return self.dataset / f"shard_{index:05d}.arrow"

    @property
    def dataset_json(self) -> Path:
        return self.dataset / "dataset.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> CheckpointFolder:
        return CheckpointFolder(self.checkpoints / f"step_{step:08d}")

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluations"


@dataclass(frozen=True)
class CheckpointFolder:
    """One checkpoint; it counts only when COMPLETE exists."""

    root: Path

    @property
    def drafter(self) -> Path:
        return self.root / "drafter"

    @property
    def complete_marker(self) -> Path:
        return self.root / "COMPLETE"

    @property
    def step(self) -> int | None:
        """The step in the folder's name, or None when the name is not a checkpoint's."""
        match = _CHECKPOINT.match(self.root.name)
        return int(match.group(1)) if match else None
