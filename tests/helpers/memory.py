"""How much memory a piece of work takes, measured in a process of its own.

    python -m tests.helpers.memory CONFIG.json FUNCTION

`peak_anonymous_bytes` runs that and watches RssAnon: memory that belongs to the process alone, file
pages and mapped files not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_EVERY_S = 0.02


def anonymous_bytes() -> int:
    """RssAnon of this process now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def watched(work: Callable[[], Any]) -> dict[str, Any]:
    """What `work` returns, RssAnon before it, its peak during it, and the time it took."""
    before = peak = anonymous_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(_EVERY_S):
            peak = max(peak, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started, cpu_started = time.monotonic(), time.process_time()
    try:
        result = work()
    finally:
        took_s, cpu_s = time.monotonic() - started, time.process_time() - cpu_started
        peak = max(peak, anonymous_bytes())
        done.set()
        watcher.join()
    return {
        "result": result,
        "before": before,
        "peak": peak,
        "seconds": took_s,
        "cpu_seconds": cpu_s,
    }


def measure_in_process(config: Path, work: str) -> dict[str, Any]:
    """Run `work` ("count", "split" or "held_out") on a run's configuration in a new process."""
    command = [sys.executable, "-m", "tests.helpers.memory", str(config), work]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _main(config_path: str, work: str) -> None:
    from services.data.source import count_prompts, held_out_prompts, open_split
    from shared.config import resolve_config

    config = resolve_config(json.loads(Path(config_path).read_text()))

    def count() -> int:
        return count_prompts(config).usable

    def held_out() -> int:
        return len(held_out_prompts(config))

    def split() -> int:
        """What a generator does: spool, then read every row once."""
        with open_split(config, folder=Path(config_path).parent) as found:
            pending = found.training.without(range(0, len(found.training), 7))
            return sum(len(row.messages) > 0 for row in pending)

    works = {"count": count, "held_out": held_out, "split": split}
    sys.stdout.write(json.dumps(watched(works[work])))


if __name__ == "__main__":
    _main(*sys.argv[1:])
