"""What every part of the controller leans on, in one value."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from control_plane.broadcast import Broadcaster
from control_plane.controller.alerts import Alerts
from control_plane.controller.heartbeats import HeartbeatBook
from control_plane.store import Database
from services.launchers import Launcher
from shared.layout import DataFolder


@dataclass(frozen=True)
class ControllerEnvironment:
    """`clock` gives seconds since the epoch, for what is stored and shown; every interval is taken
    on `monotonic`, since the clock of a machine may be set at any moment."""

    folder: DataFolder
    database: Database
    launcher: Launcher
    broadcaster: Broadcaster
    heartbeats: HeartbeatBook
    alerts: Alerts = field(default_factory=Alerts)
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
