"""From what `data.prompts` names to the files it means, in a defined order.

    file | folder | glob | folder that `datasets` saved, each local or s3://  ->  [SourceFile]

Folders and globs give their files sorted by path, part by part; a folder that `datasets` saved
gives them in the order that its state.json lists. Left out are hidden files, files whose names
speak of no format that is read, and those that describe a data set rather than being part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from services.data.raw.saved_datasets import files_of_saved_dataset, is_saved_dataset
from services.data.raw.trees import LocalTree, SourceFile, StoreTree, Tree
from services.object_stores import BlockingStore, FileUrl, open_store, parse_store_url
from shared.errors import DataError

_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
_PACKED = (".gz", ".zst")
_DESCRIPTIONS = frozenset({"dataset_info.json", "dataset_infos.json", "dataset.json", "state.json"})
_WILDCARD = re.compile(r"[*?\[]")


@contextmanager
def open_location(location: str, format_: str = "auto") -> Iterator[list[SourceFile]]:
    """The files of a location, at least one, readable until the block ends.

    `format_` as in data.format: with "datasets" only a saved data set will do; another one chooses
    among the files of a folder. Raises DataError, UserError for an address that is none, and what
    an object store raises.
    """
    if location.startswith("s3://"):
        url, pattern = _split_at_wildcards(location.rstrip("/"))
        name = ""
        if not pattern and url.count("/") > 2:  # more than a bucket
            url, name = url.rsplit("/", 1)
        with BlockingStore(open_store(url)) as store:
            yield _choose(StoreTree(store, location), name, pattern, format_)
        return
    if location.startswith("file:"):
        url_path = parse_store_url(location)
        assert isinstance(url_path, FileUrl)
        location = str(url_path.path)
    path = Path(location).expanduser()
    try:
        exists = path.exists()
    except PermissionError as error:
        raise DataError(f"prompts file {path} cannot be read: {error.strerror}") from None
    if exists:
        yield _choose(LocalTree(path.parent, str(path)), path.name, "", format_)
    else:
        base, pattern = _split_at_wildcards(str(path))
        yield _choose(LocalTree(Path(base or "."), str(path)), "", pattern, format_)


def format_named(name: str) -> str | None:
    """The format that a file's name speaks of, None when it speaks of none that is read."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    if suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return _FORMATS.get(suffixes[-1]) if suffixes else None


def _choose(tree: Tree, name: str, pattern: str, format_: str) -> list[SourceFile]:
    """The file or folder `name` of a tree ('' is the tree itself), or what matches `pattern`."""
    if pattern:
        found = [key for key in tree.matching(pattern) if not _is_hidden(key)]
        if not found:
            raise DataError(f"no file matches {tree.shown}; check data.prompts")
        return [tree.file(key) for key in _in_order(found)]
    single = tree.file_or_none(name) if name else None
    if single is not None:
        if format_ == "datasets":
            raise DataError(f"data.format is 'datasets' but {tree.shown} is a file: name a folder")
        return [single]
    folder = tree.below(name)
    keys = folder.keys()
    if not keys and not folder.exists():
        raise DataError(f"prompts file {tree.shown} does not exist; check data.prompts")
    if is_saved_dataset(keys):
        return files_of_saved_dataset(folder, keys)
    if format_ == "datasets":
        raise DataError(
            f"{tree.shown} is no folder that datasets' save_to_disk wrote (it has no state.json "
            "and no dataset_dict.json); leave data.format out to read its files as they are"
        )
    return [folder.file(key) for key in _in_order(_data_files(tree.shown, keys, format_))]


def _data_files(shown: str, keys: Iterable[str], format_: str) -> list[str]:
    by_format: dict[str, list[str]] = {}
    for key in keys:
        named = format_named(key)
        if named and not _is_hidden(key) and PurePosixPath(key).name not in _DESCRIPTIONS:
            by_format.setdefault(named, []).append(key)
    if format_ != "auto":
        by_format = {named: found for named, found in by_format.items() if named == format_}
    if not by_format:
        wanted = "" if format_ == "auto" else f" that is {format_}"
        raise DataError(
            f"{shown} holds no file{wanted} ({', '.join(sorted(_FORMATS))}, each also packed as "
            ".gz or .zst); check data.prompts"
        )
    if len(by_format) > 1:
        counts = ", ".join(f"{len(found)} {named}" for named, found in sorted(by_format.items()))
        raise DataError(
            f"{shown} holds files of several formats ({counts}): choose one with data.format, or "
            "name the files with a glob"
        )
    return next(iter(by_format.values()))


def _split_at_wildcards(location: str) -> tuple[str, str]:
    """The folder before the first part with a wildcard, and the pattern from there on."""
    parts = location.split("/")
    first = next((at for at, part in enumerate(parts) if _WILDCARD.search(part)), None)
    if first is None:
        return location, ""
    return "/".join(parts[:first]) or ("/" if first else ""), plain_pattern(parts[first:])


def plain_pattern(parts: Iterable[str]) -> str:
    """A pattern in which '**' is a part of its own and never the last one."""
    found = [part if part == "**" else re.sub(r"\*+", "*", part) for part in parts]
    return "/".join([*found, "*"] if found[-1] == "**" else found)


def _in_order(keys: Iterable[str]) -> list[str]:
    return sorted(keys, key=lambda key: key.split("/"))


def _is_hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))
