"""Launchers: what starts worker processes and says whether they live.

`base` is the interface, `local` starts processes on this machine.
"""

from services.launchers.base import Launcher, LaunchSpec, ProcessHandle
from services.launchers.local import LocalLauncher

__all__ = ["LaunchSpec", "Launcher", "LocalLauncher", "ProcessHandle"]
