"""Leaves a process behind and exits with 5."""

import subprocess
import sys

child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, *sys.argv[1:], flush=True)
sys.exit(5)
