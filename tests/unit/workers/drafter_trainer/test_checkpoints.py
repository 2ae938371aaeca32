"""Checkpoint folders: complete or not there, torn ones ignored, full disk, keeping the newest."""

import errno
from pathlib import Path

import pytest
import torch

from services.files import sha256_file
from shared.errors import DiskFullError, EnvironmentFault, IntegrityError
from shared.layout import RunFolder
from tests.helpers.damage import flip_bit
from workers.drafter_trainer.checkpoints import STATE, TENSORS, CheckpointStore


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
    assert [one.split()[0] for one in store.clean()] == ["step_00000004"]


def test_a_torn_file_does_not_count(store: CheckpointStore):
    write(store, 2)
    write(store, 4)
    path = store.folder.checkpoint(4).root / STATE
    path.write_bytes(path.read_bytes()[:-3])
    newest = store.newest()
    assert newest is not None and newest.step == 2


@pytest.mark.parametrize("name", ["drafter/model.safetensors", TENSORS, STATE])
def test_a_flipped_bit_is_found_with_file_and_sums(store: CheckpointStore, name: str):
    write(store, 4)
    newest = store.newest()
    assert newest is not None
    newest.verify()
    path = newest.folder.root / name
    sound = sha256_file(path)[1]
    flip_bit(path)
    with pytest.raises(IntegrityError, match=f"{name} is damaged") as caught:
        newest.verify()
    assert sound in str(caught.value) and sha256_file(path)[1] in str(caught.value)


def test_a_checkpoint_set_aside_counts_no_more(store: CheckpointStore):
    write(store, 2)
    write(store, 4)
    newest = store.newest()
    assert newest is not None
    store.set_aside(newest)
    assert [one.step for one in store.complete()] == [2]
    write(store, 4)
    assert [one.step for one in store.complete()] == [2, 4]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"files": 3}', b'{"files": {"a": 3}}', b"\xff"])
def test_a_damaged_marker_does_not_count(store: CheckpointStore, content: bytes):
    write(store, 4)
    store.folder.checkpoint(4).complete_marker.write_bytes(content)
    assert store.newest() is None
    assert "COMPLETE is damaged" in store.clean()[0]


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    write(store, 4)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("iterdir", "read_bytes"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, refuse)
            with pytest.raises(EnvironmentFault, match="permission denied"):
                store.newest()


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
