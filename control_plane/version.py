"""The program's version: of the installed distribution, or of the checkout it runs from."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path


@cache
def program_version() -> str:
    try:
        return installed_version("dflash-mesh")
    except PackageNotFoundError:
        project = Path(__file__).parent.parent / "pyproject.toml"
        return str(tomllib.loads(project.read_text("utf-8"))["project"]["version"])
