"""Runs a command that must not outlive this process's parent.

    python -m services.servers.keeper COMMAND ...

The parent holds the other end of the standard input. When it closes (the parent ended, however),
the command's process group gets SIGTERM and, after a grace time, SIGKILL. A generator that is
killed so never leaves a server behind that holds a GPU. Exits with the command's status.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys

TERMINATE_GRACE_S = 15.0
_EXIT_USAGE = 2
# The command has packages of its own and no business with the control plane.
_KEPT_BACK = frozenset({"PYTHONPATH", "DFLASH_MESH_TOKEN"})


def main(argv: list[str]) -> int:
    """Run `argv` until it ends or the standard input closes."""
    if not argv:
        sys.stderr.write("usage: python -m services.servers.keeper COMMAND ...\n")
        return _EXIT_USAGE
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    environment = {name: value for name, value in os.environ.items() if name not in _KEPT_BACK}
    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
    )
    descriptor = os.pidfd_open(child.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin, selectors.EVENT_READ)
            selector.register(descriptor, selectors.EVENT_READ)
            while child.poll() is None:
                ready = {key.fileobj for key, _ in selector.select()}
                if sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
                    return _end(child)
    finally:
        os.close(descriptor)
    return child.returncode


def _end(child: subprocess.Popen[bytes]) -> int:
    _signal_group(child, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(TERMINATE_GRACE_S)
    # Helpers of the command may live on after it; their group goes with it.
    _signal_group(child, signal.SIGKILL)
    return child.wait()


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
