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


@pytest.mark.parametrize("name", ["some-model", "Some_Model", "model_files"])
def test_a_package_goes_by_its_registry_name_or_its_import_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shipped = tmp_path / "model_files" / "data" / "weights.gguf"
    shipped.parent.mkdir(parents=True)
    shipped.touch()
    (tmp_path / "model_files" / "__init__.py").touch()
    about = tmp_path / "some_model-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
    (about / "RECORD").write_text("model_files/__init__.py,,\nmodel_files/data/weights.gguf,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_gguf(name) == shipped
    second = shipped.with_name("other.gguf")
    second.touch()
    if name == "model_files":
        with pytest.raises(TargetModelError, match=r"2 GGUF files.*other\.gguf"):
            find_gguf(name)


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
