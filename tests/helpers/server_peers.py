"""Server processes for tests: started, found by the port they print, killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from shared.tiny_target import model_folder

REPOSITORY = Path(__file__).parents[2]


@contextlib.contextmanager
def _process(module: str, *options: str) -> Iterator[str]:
    command = [sys.executable, "-m", module, "--model-path", str(model_folder())]
    with subprocess.Popen(
        [*command, "--port", "0", *options], stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().split()[1].decode()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def sglang_peer(*options: str) -> contextlib.AbstractContextManager[str]:
    """A process that speaks SGLang's native interface; its address."""
    return _process("tests.helpers.sglang_peer", *options)


def openai_peer(*options: str) -> contextlib.AbstractContextManager[str]:
    """A process that speaks OpenAI's interface the way several servers do; its address."""
    return _process("tests.helpers.openai_peer", *options)
