"""The target that a run began with: its weights must not change between two starts.

    first start: config.json, weights -> size, mtime, SHA-256 -> target.json in the run folder
    later start: size and mtime equal -> the same; mtime another -> summed again; else refused

So an unchanged target of any size costs a `stat` a file. Tokenizer and template are no part of
this: the data set's fingerprint has them. A lock lets the workers that start together sum once.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from services.files import disk_faults, file_sum, write_file
from shared.errors import IntegrityError, TargetModelError
from shared.layout import RunFolder

_PATTERNS = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.bin")


class TargetFile(msgspec.Struct, frozen=True):
    """One file of the target as the run first saw it."""

    num_bytes: int
    mtime_ns: int
    sha256: str


class TargetIdentity(msgspec.Struct, frozen=True):
    """The content of target.json."""

    files: dict[str, TargetFile]


def check_target(run: RunFolder, target: Path) -> None:
    """Record the target at the first call of a run, compare it at every later one; blocking.

    IntegrityError names the file that differs, TargetModelError a folder that is not there.
    """
    if not target.is_dir():
        raise TargetModelError(f"target folder {target} does not exist")
    with _only_one(run):
        known = _read(run.target_json)
        found = _first_look(target) if known is None else _compare(target, known)
        if found != known:
            write_file(run.target_json, msgspec.json.format(msgspec.json.encode(found), indent=1))


def _first_look(target: Path) -> TargetIdentity:
    return TargetIdentity({name: _look(target / name) for name in _names(target)})


def _compare(target: Path, known: TargetIdentity) -> TargetIdentity:
    """What is there now, with sums; IntegrityError when it is not the same target."""
    names = set(_names(target))
    for name in sorted(names ^ set(known.files)):
        raise _changed(target, f"{name} {'is new' if name in names else 'is gone'}")
    files: dict[str, TargetFile] = {}
    for name, recorded in known.files.items():
        with disk_faults(target / name):
            status = (target / name).stat()
        if status.st_size != recorded.num_bytes:
            what = f"{name} has {status.st_size} bytes, it had {recorded.num_bytes}"
            raise _changed(target, what)
        if status.st_mtime_ns == recorded.mtime_ns:
            files[name] = recorded
            continue
        files[name] = _look(target / name)
        if files[name].sha256 != recorded.sha256:
            what = f"{name} has sha256 {files[name].sha256}, it had {recorded.sha256}"
            raise _changed(target, what)
    return TargetIdentity(files)


def _changed(target: Path, what: str) -> IntegrityError:
    return IntegrityError(
        f"{target} is not the target that this run began with: {what}. Put the earlier files back "
        "and resume, or start a new run for the new target"
    )


def _names(target: Path) -> list[str]:
    found = {path.name for pattern in _PATTERNS for path in target.glob(pattern) if path.is_file()}
    return sorted(found)


def _look(path: Path) -> TargetFile:
    with disk_faults(path):
        mtime_ns = path.stat().st_mtime_ns  # first: a change meanwhile is then seen next time
    found = file_sum(path)
    return TargetFile(found.num_bytes, mtime_ns, found.sha256)


def _read(path: Path) -> TargetIdentity | None:
    try:
        with disk_faults(path):
            return msgspec.json.decode(path.read_bytes(), type=TargetIdentity)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise IntegrityError(
            f"{path} is damaged: {error}. If the target has not changed since the run began, "
            "remove the file: it is made again"
        ) from error


@contextmanager
def _only_one(run: RunFolder) -> Iterator[None]:
    path = run.root / ".target.lock"
    with disk_faults(path):
        run.root.mkdir(parents=True, exist_ok=True)
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
