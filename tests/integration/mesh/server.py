"""A real control plane whose launcher starts the roles of these tests.

python -m tests.integration.mesh.server DATA PORT [--no-resume]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from control_plane import server
from control_plane.settings import Settings
from services.launchers import LocalLauncher

if __name__ == "__main__":
    settings = Settings(
        data=Path(sys.argv[1]), port=int(sys.argv[2]), resume="--no-resume" not in sys.argv
    )
    server.LocalLauncher = partial(LocalLauncher, package="tests.integration.mesh.roles")  # type: ignore[misc,assignment]
    sys.exit(server.serve(settings))
