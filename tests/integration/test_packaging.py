"""The wheel holds everything: installed away from the checkout, the command line works."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, made from a copy of the tracked sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source, site = folder / "source", folder / "site"
    source.mkdir()
    files = run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0")
    for name in files:
        wanted = name.startswith(("shared/", "services/", "control_plane/", "workers/"))
        if (wanted or name in ("pyproject.toml", "README.md", "LICENSE")) and (
            ROOT / name
        ).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = run(
        *(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), "."),
        cwd=source,
    )
    assert built.returncode == 0, built.stderr
    wheel = next(folder.glob("dflash_mesh-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_every_packaged_file_of_the_checkout_is_in_the_wheel(installed: Path) -> None:
    tracked = run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0")
    packaged = [n for n in tracked if n.startswith(("shared/", "services/", "control_plane/"))]
    packaged += [n for n in tracked if n.startswith("workers/")]
    missing = [n for n in packaged if (ROOT / n).exists() and not (installed / n).exists()]
    assert missing == []
    assert (installed / "shared/tiny_target/model/model.safetensors").stat().st_size > 10**6


def test_no_other_top_level_package_is_shipped(installed: Path) -> None:
    packages = {p.name for p in installed.iterdir() if not p.name.endswith(".dist-info")}
    assert packages == {"shared", "services", "control_plane", "workers"}


def test_the_installed_command_line_resolves_presets_and_serves(
    installed: Path, tmp_path: Path
) -> None:
    script = (
        "import control_plane, sys; from pathlib import Path; "
        f"assert Path(control_plane.__file__).is_relative_to({str(installed)!r}); "
        "from shared.config import preset_names, resolve_config; "
        "from shared.tiny_target import model_folder; "
        "assert 'demo' in preset_names(); resolve_config(preset='demo'); "
        "assert (model_folder() / 'model.safetensors').exists(); "
        "from control_plane.static_pages import STATIC_FOLDER; "
        "assert (STATIC_FOLDER / 'vendor' / 'uPlot.min.css').exists(); "
        "assert 'torch' not in sys.modules"
    )
    done = run(sys.executable, "-c", script, cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    help_text = run(
        *(sys.executable, "-m", "control_plane.cli", "--help"),
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    assert help_text.returncode == 0, help_text.stderr
    assert all(word in help_text.stdout for word in ("up", "run", "export", "demo", "doctor"))
