"""Whether a server's name for its model and a local folder mean the same model."""

from __future__ import annotations

from pathlib import Path


def same_model(served: str, folder: Path) -> bool:
    """Whether a server's model path and a local folder are the same model, judged by name."""
    if Path(served).expanduser().resolve() == folder.resolve():
        return True
    return bool(_names(served) & _names(str(folder.resolve())))


def _names(path: str) -> set[str]:
    """Names a model goes by: the last part of its path, and the hub name of a cached snapshot."""
    parts = [part for part in path.replace("\\", "/").rstrip("/").split("/") if part]
    if not parts:
        return set()
    names = {parts[-1].lower()}
    if len(parts) >= 3 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        names = {parts[-3].rpartition("--")[2].lower()}
    return names
