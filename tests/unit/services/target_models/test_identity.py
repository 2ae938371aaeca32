"""A run keeps to the target it began with."""

import os
from pathlib import Path

import pytest

from services.target_models import identity
from services.target_models.identity import check_target
from shared.errors import IntegrityError, TargetModelError
from shared.layout import RunFolder
from tests.helpers.damage import flip_bit


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "README.md").write_text("anything")
    return folder


@pytest.fixture
def run(tmp_path: Path, target: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    check_target(folder, target)
    return folder


def test_an_unchanged_target_is_not_read_again(
    run: RunFolder, target: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(identity, "file_sum", None)
    (target / "README.md").write_text("something else")
    check_target(run, target)


def test_a_copy_with_other_times_is_the_same_target(run: RunFolder, target: Path):
    before = run.target_json.read_bytes()
    os.utime(target / "model.safetensors", ns=(1, 1))
    check_target(run, target)
    assert run.target_json.read_bytes() != before  # the new time, so that it is summed once only


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_another_content_of_the_same_size_is_refused(run: RunFolder, target: Path, name: str):
    status = (target / name).stat()
    flip_bit(target / name)
    os.utime(target / name, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(IntegrityError, match=f"{name} has sha256 .*start a new run"):
        check_target(run, target)


def test_other_sizes_and_other_files_are_refused(run: RunFolder, target: Path):
    (target / "more.safetensors").write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"more\.safetensors is new"):
        check_target(run, target)
    (target / "more.safetensors").unlink()
    (target / "model.safetensors").write_bytes(b"weights and more")
    with pytest.raises(IntegrityError, match="has 16 bytes, it had 7"):
        check_target(run, target)
    (target / "model.safetensors").unlink()
    with pytest.raises(IntegrityError, match=r"model\.safetensors is gone"):
        check_target(run, target)


def test_a_missing_folder_and_a_damaged_record_say_so(run: RunFolder, target: Path):
    with pytest.raises(TargetModelError, match="does not exist"):
        check_target(run, target / "none")
    run.target_json.write_text("{")
    with pytest.raises(IntegrityError, match=r"target\.json is damaged"):
        check_target(run, target)
