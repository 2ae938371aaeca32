"""run.json in the run folder: what the run is and how it stands, for whoever has only the folder.

The resolved configuration holds no secrets, so neither does the file.
"""

from __future__ import annotations

from typing import Any

from control_plane.store.tables import Run
from services.files import write_json
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


def write_run_file(folder: RunFolder, run: Run) -> None:
    """Replace run.json; DiskFullError or EnvironmentFault when it cannot be written."""
    folder.root.mkdir(parents=True, exist_ok=True)
    write_json(folder.run_json, run_record(run))
