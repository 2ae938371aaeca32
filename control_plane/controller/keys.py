"""CURVE keys of runs, each in a file that only the owner may read.

They live outside the run folders (which are exported) and outside the database. They must outlive
the control plane, since the workers of a run do: a worker that restarts later gets the same keys.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pydantic import ValidationError

from services.files import disk_faults
from services.links import make_link_keys
from shared.api.workers import LinkKeys

logger = logging.getLogger(__name__)


class LinkKeyStore:
    """Keys by run id, made at first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys: dict[str, LinkKeys] = {}

    def get(self, run_id: str) -> LinkKeys:
        """The run's keys, the same in every call, over restarts too."""
        if run_id not in self._keys:
            self._keys[run_id] = self._read(run_id) or self._make(run_id)
        return self._keys[run_id]

    def forget(self, run_id: str) -> None:
        """Remove the keys of a run that is deleted."""
        self._keys.pop(run_id, None)
        self._path(run_id).unlink(missing_ok=True)

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"

    def _read(self, run_id: str) -> LinkKeys | None:
        path = self._path(run_id)
        if not path.exists():
            return None
        try:
            with disk_faults(path):
                return LinkKeys.model_validate_json(path.read_bytes())
        except ValidationError:
            logger.warning("the link keys of run %s cannot be read and are made anew", run_id)
            return None

    def _make(self, run_id: str) -> LinkKeys:
        keys = make_link_keys()
        partial = self._path(run_id).with_suffix(".partial")
        with disk_faults(partial):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(keys.model_dump_json())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path(run_id))
        return keys
