"""metrics.jsonl: appended, cut to a checkpoint's step, torn lines removed."""

import json
from pathlib import Path

import pytest

from shared.errors import DiskFullError
from workers.drafter_trainer.series import MetricsLog, truncate_to_step


def write_steps(path: Path, steps: range) -> None:
    log = MetricsLog(path)
    for step in steps:
        log.append({"step": step, "loss": 1 / step})
    log.close()


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_steps_after_the_checkpoint_are_cut(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, range(1, 8))
    assert truncate_to_step(path, 5) > 0
    assert steps_in(path) == [1, 2, 3, 4, 5]
    write_steps(path, range(6, 8))
    assert steps_in(path) == [1, 2, 3, 4, 5, 6, 7]


def test_a_torn_last_line_is_cut(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, range(1, 4))
    with path.open("ab") as file:
        file.write(b'{"step": 4, "lo')
    truncate_to_step(path, 10)
    assert steps_in(path) == [1, 2, 3]


def test_nothing_to_cut(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    assert truncate_to_step(path, 3) == 0
    write_steps(path, range(1, 4))
    assert truncate_to_step(path, 3) == 0
    truncate_to_step(path, 0)
    assert path.read_bytes() == b""


def test_a_full_disk_has_its_own_error():
    log = MetricsLog(Path("/dev/full"))
    with pytest.raises(DiskFullError, match="no space left"):
        log.append({"step": 1})
    log.close()
