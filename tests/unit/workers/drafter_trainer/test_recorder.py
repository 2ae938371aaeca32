"""A failed write of a checkpoint is reported once, by the worker, and leaves no loose end."""

import asyncio
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.errors import DiskFullError
from workers.drafter_trainer.recorder import Recorder


class FullDisk:
    """A store on a disk without space."""

    def write(self, *_: Any) -> None:
        raise DiskFullError("no space left")


async def test_a_write_that_failed_while_the_trainer_ends_is_not_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    failures: list[Exception] = []
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: unhandled.append(found))
    snapshot = SimpleNamespace(step=3, state={}, tensors={}, save_drafter=None)
    context: Any = SimpleNamespace(fail=failures.append)
    training: Any = SimpleNamespace(snapshot=lambda: snapshot)
    store: Any = FullDisk()
    recorder = Recorder(context, training, store)
    await recorder._start_checkpoint()
    await recorder.close()
    assert [str(error) for error in failures] == ["no space left"]
    assert "the last checkpoint was not written: no space left" in caplog.text
    del recorder
    gc.collect()
    assert unhandled == []
