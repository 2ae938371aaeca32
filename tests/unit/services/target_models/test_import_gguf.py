"""Importing a GGUF: what is not one is refused with the reason, and nothing is left behind."""

from pathlib import Path

import pytest

from services.target_models.import_gguf import find_gguf, import_gguf, main
from shared.errors import ConflictError, TargetModelError


def test_a_source_is_a_file_or_a_package_that_ships_one(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert find_gguf(str(file)) == file
    with pytest.raises(TargetModelError, match="neither a GGUF file nor an installed package"):
        find_gguf("no_such_package_here")
    with pytest.raises(TargetModelError, match="neither a GGUF file"):
        find_gguf("pytest")


def test_an_existing_folder_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConflictError, match="exists"):
        import_gguf(tmp_path / "model.gguf", tmp_path / "out")


def test_a_broken_file_is_refused_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x00" * 64)
    assert main([str(broken), str(tmp_path / "out")]) == 1
    assert "error:" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]
