"""run.json in the run folder: what the run is and how it stands, for whoever has only the folder.

The resolved configuration holds no secrets, so neither does the file.
"""

from __future__ import annotations

from typing import Any

from control_plane.store.tables import Run
from services.files import disk_faults, write_json
from shared.errors import StorageFault
from shared.layout import RunFolder


def run_record(run: Run) -> dict[str, Any]:
    """The content of run.json."""
    return {
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "reason": run.reason,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "acceptance_length": run.acceptance_length,
        "overrides": run.overrides,
        "config_sha256": run.config_sha256,
        "config": run.config,
    }


def make_run_folder(folder: RunFolder) -> None:
    """The run's folder, if it is not there; EnvironmentFault when it cannot be made."""
    try:
        with disk_faults(folder.root):
            folder.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFault(
            f"the run's folder {folder.root} cannot be made: {error.strerror}; "
            "what lies in its way must go"
        ) from error


def write_run_file(folder: RunFolder, run: Run) -> None:
    """Replace run.json; EnvironmentFault when it cannot be written."""
    make_run_folder(folder)
    write_json(folder.run_json, run_record(run))
