"""One control plane for each data folder: a lock that the operating system takes back by itself.

The lock file stays in place (removing it would let two processes lock two files); what it holds is
the pid of whoever holds or held the lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from shared.errors import ConflictError, EnvironmentFault


class FolderLock:
    """Held from `acquire` to `release`, or to the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """ConflictError, with the pid, when another process holds it; EnvironmentFault when the
        folder cannot be written."""
        folder = self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise EnvironmentFault(
                f"the data folder {folder} cannot be written ({error.strerror}); "
                "choose another with --data, or correct its permissions"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise EnvironmentFault(f"{self._path} cannot be locked: {error}") from error
            raise ConflictError(
                f"another control plane (pid {holder}) uses the data folder {folder}; "
                "stop it, or choose another folder with --data"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
