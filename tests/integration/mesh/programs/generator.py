"""Starts a process of its own, says which, and waits."""

import os
import signal
import subprocess
import sys

child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, os.getsid(0) == os.getpid(), sys.stdin.read(), flush=True)
signal.pause()
