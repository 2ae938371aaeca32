"""Checkpoint folders: complete or not there, torn ones ignored, full disk, keeping the newest."""

import errno
from pathlib import Path

import pytest
import torch

from shared.errors import DiskFullError
from shared.layout import RunFolder
from workers.drafter_trainer.checkpoints import STATE, CheckpointStore


def save_weights(folder: Path) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")


def write(store: CheckpointStore, step: int) -> None:
    store.write(step, {"step": step}, {"m": torch.full((3,), float(step))}, save_weights)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(RunFolder(tmp_path), keep=2)


def test_what_is_written_is_read_back(store: CheckpointStore):
    write(store, 4)
    newest = store.newest()
    assert newest is not None and newest.step == 4
    assert newest.read_state() == {"step": 4}
    assert torch.equal(newest.read_tensors()["m"], torch.full((3,), 4.0))
    files = [p for p in newest.folder.root.rglob("*") if p.is_file() and p.name != "COMPLETE"]
    assert newest.num_bytes == sum(path.stat().st_size for path in files)


def test_only_the_newest_are_kept(store: CheckpointStore):
    for step in (2, 4, 10):
        write(store, step)
    assert store.prune() == [2]
    assert [checkpoint.step for checkpoint in store.complete()] == [4, 10]
    assert store.prune() == []


def test_a_folder_without_marker_does_not_count(store: CheckpointStore):
    write(store, 2)
    write(store, 4)
    store.folder.checkpoint(4).complete_marker.unlink()
    newest = store.newest()
    assert newest is not None and newest.step == 2
    assert store.clean() == ["step_00000004"]


def test_a_torn_file_does_not_count(store: CheckpointStore):
    write(store, 2)
    write(store, 4)
    path = store.folder.checkpoint(4).root / STATE
    path.write_bytes(path.read_bytes()[:-3])
    newest = store.newest()
    assert newest is not None and newest.step == 2


def test_an_incomplete_checkpoint_is_written_over(store: CheckpointStore):
    write(store, 4)
    store.folder.checkpoint(4).complete_marker.unlink()
    write(store, 4)
    assert store.newest() is not None and store.clean() == []


def test_what_a_killed_writer_left_is_removed(store: CheckpointStore):
    write(store, 2)
    left = store.folder.checkpoints / ".step_00000004.tmp"
    save_weights(left)
    assert store.clean() == []
    assert not left.exists()


def test_a_full_disk_loses_nothing(store: CheckpointStore):
    write(store, 2)

    def full(folder: Path) -> None:
        save_weights(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskFullError, match="no space left"):
        store.write(4, {}, {"m": torch.zeros(1)}, full)
    assert [path.name for path in store.folder.checkpoints.iterdir()] == ["step_00000002"]
