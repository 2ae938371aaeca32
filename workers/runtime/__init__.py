"""What every role runs inside: registration, heartbeats, drain, measures and exit codes.

process    run_worker: arguments, logging, signals, exit code
session    the conversation with the control plane: register, heartbeat, leave
context    WorkerContext: what a role sees of all this
meter      tokens, busy time and waiting time
files      announcing closed files to the archiver
"""

from workers.runtime.context import WorkerContext
from workers.runtime.meter import Meter
from workers.runtime.process import run_worker

__all__ = ["Meter", "WorkerContext", "run_worker"]
