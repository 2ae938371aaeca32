"""Reading a run's completions log while no generator has it."""

from __future__ import annotations

from shared.layout import RunFolder
from shared.messages import Completion
from workers.generator.log import CompletionLog


def read_log(folder: RunFolder, per_file: int = 10) -> list[Completion]:
    """The whole log of a run; the folder is free again afterwards."""
    log = CompletionLog(folder, per_file)
    try:
        return log.read(0, 10_000)
    finally:
        log.close()
