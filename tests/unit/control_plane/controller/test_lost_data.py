"""A folder that is gone, one that lacks a part, and one that cannot be read."""

import errno
from pathlib import Path

import pytest

from control_plane.controller.lost_data import lost_data
from shared.errors import EnvironmentFault
from shared.layout import RunFolder

KNOWN = {"checkpoints": 3, "segments": 0, "completions": 68}


def test_what_is_gone_is_named_with_what_was_known(tmp_path: Path):
    folder = RunFolder(tmp_path / "run")
    reason = lost_data(KNOWN, folder)
    assert reason is not None and reason.startswith(
        f"the ledger knows 3 checkpoints, 68 completions, but the run folder {folder.root} is gone"
    )
    folder.checkpoints.mkdir(parents=True)
    assert f"but {folder.completions} is gone" in (lost_data(KNOWN, folder) or "")
    folder.completions.mkdir()
    assert lost_data(KNOWN, folder) is None


def test_a_new_run_has_nothing_to_lose(tmp_path: Path):
    assert lost_data(dict.fromkeys(KNOWN, 0), RunFolder(tmp_path / "none")) is None


def test_a_folder_that_cannot_be_read_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(EnvironmentFault, match="permission denied"):
        lost_data(KNOWN, RunFolder(tmp_path))
