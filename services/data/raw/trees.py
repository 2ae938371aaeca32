"""Files below a local folder or below an address of an object store, seen alike.

Keys are paths relative to the tree, with '/' between their parts.
"""

from __future__ import annotations

import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from services.object_stores import BlockingStore, ObjectInfo
from shared.errors import DataError

_STORE_BUFFER_BYTES = 2**20


@dataclass(frozen=True)
class SourceFile:
    """One file. `name` is what people are shown; `path` is set for local files."""

    name: str
    num_bytes: int
    path: Path | None
    opener: Callable[[], BinaryIO]

    def open(self) -> BinaryIO:
        """The content as it is stored, from the start; seekable. DataError when it cannot be."""
        try:
            return self.opener()
        except OSError as error:
            raise DataError(f"prompts file {self.name} cannot be read: {error.strerror}") from None


class Tree(ABC):
    """`shown` is the location as the configuration has it."""

    shown: str

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is such a folder at all."""

    @abstractmethod
    def keys(self) -> list[str]:
        """Every file below, in any order."""

    @abstractmethod
    def matching(self, pattern: str) -> list[str]:
        """Files whose key matches a shell pattern; the part '**' is any number of folders."""

    @abstractmethod
    def file_or_none(self, key: str) -> SourceFile | None:
        """The file of this key, None when it is none."""

    @abstractmethod
    def below(self, folder: str) -> Tree:
        """The tree of a sub-folder ('' for this one)."""

    def file(self, key: str) -> SourceFile:
        """The file of this key; DataError when there is none."""
        found = self.file_or_none(key)
        if found is None:
            raise DataError(f"{self.shown} lacks the file {key}: fetch the data set again")
        return found

    def read(self, key: str) -> bytes:
        """All of a small file."""
        with self.file(key).open() as handle:
            return handle.read()


class LocalTree(Tree):
    def __init__(self, root: Path, shown: str) -> None:
        self.root, self.shown = root, shown

    def exists(self) -> bool:
        return self.root.is_dir()

    def keys(self) -> list[str]:
        found: list[str] = []
        if not self.exists():
            return found
        for folder, _, names in os.walk(self.root, onerror=self._unreadable):
            relative = Path(folder).relative_to(self.root)
            found += [(relative / name).as_posix() for name in names]
        return [key for key in found if (self.root / key).is_file()]

    def matching(self, pattern: str) -> list[str]:
        found = self.root.glob(pattern) if self.root.is_dir() else ()
        return [path.relative_to(self.root).as_posix() for path in found if path.is_file()]

    def file_or_none(self, key: str) -> SourceFile | None:
        path = self.root / key
        if path.is_dir() or not path.exists():
            return None
        return SourceFile(
            str(path), path.stat().st_size, path, lambda: cast(BinaryIO, path.open("rb", 0))
        )

    def below(self, folder: str) -> Tree:
        return LocalTree(self.root / folder, self.shown)

    def _unreadable(self, error: OSError) -> None:
        raise DataError(f"folder {error.filename} cannot be read: {error.strerror}")


class StoreTree(Tree):
    """Objects below `prefix` of a store; the store is open as long as the tree is used."""

    def __init__(self, store: BlockingStore, shown: str, prefix: str = "") -> None:
        self.shown = shown
        self._store, self._prefix = store, prefix
        self._listing: dict[str, ObjectInfo] | None = None

    def exists(self) -> bool:
        return bool(self._infos())

    def keys(self) -> list[str]:
        return list(self._infos())

    def matching(self, pattern: str) -> list[str]:
        rule = glob_rule(pattern)
        return [key for key in self._infos() if rule.fullmatch(key)]

    def file_or_none(self, key: str) -> SourceFile | None:
        full = f"{self._prefix}/{key}" if self._prefix else key
        info = self._infos().get(key) if self._listing is not None else self._store.head(full)
        if info is None:
            return None
        found = ObjectInfo(full, info.num_bytes, info.modified_at)
        return SourceFile(
            f"{self._store.url}/{full}",
            info.num_bytes,
            None,
            lambda: cast(BinaryIO, io.BufferedReader(self._store.open(found), _STORE_BUFFER_BYTES)),
        )

    def below(self, folder: str) -> Tree:
        prefix = "/".join(part for part in (self._prefix, folder) if part)
        return StoreTree(self._store, self.shown, prefix)

    def _infos(self) -> dict[str, ObjectInfo]:
        if self._listing is None:
            skipped = len(self._prefix) + 1 if self._prefix else 0
            found = self._store.objects(self._prefix)
            self._listing = {info.key[skipped:]: info for info in found}
        return self._listing


def glob_rule(pattern: str) -> re.Pattern[str]:
    """A shell pattern over whole keys: '*' and '?' stay within a part, '**/' spans folders."""
    *folders, name = pattern.split("/")
    rule = "".join("(?:[^/]+/)*" if part == "**" else f"{_part_rule(part)}/" for part in folders)
    return re.compile(rule + _part_rule(name), re.DOTALL)


def _part_rule(part: str) -> str:
    rule = ""
    for token in re.findall(r"\*|\?|\[!?\]?[^\]]*\]|.", part, re.DOTALL):
        if token == "*":
            rule += "[^/]*"
        elif token == "?":
            rule += "[^/]"
        elif len(token) > 1:
            inner = token[1:-1].replace("\\", "\\\\")
            # A class that leaves characters out would take the separator too.
            rule += "(?!/)" + (f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]")
        else:
            rule += re.escape(token)
    return rule
