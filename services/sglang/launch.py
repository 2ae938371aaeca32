"""An SGLang server that belongs to the run: started, waited for, stopped.

SGLang pins its own torch, so it runs under the interpreter of an environment of its own. Its output
goes to a log file in the run folder. A keeper process (keeper.py) makes sure that it ends with the
generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from pathlib import Path

from services.sglang.client import SglangClient
from services.sglang.keeper import TERMINATE_GRACE_S
from shared.config.sampling import SglangSection
from shared.errors import EnvironmentFault, UpstreamError, UpstreamTimeout

logger = logging.getLogger(__name__)
_POLL_S = 0.5
_LOG_TAIL_BYTES = 2000


class SglangLauncher:
    """Use as an async context manager: inside, the server is healthy at `url`."""

    def __init__(self, section: SglangSection, model: Path, log_path: Path) -> None:
        assert section.python is not None, "the configuration demands python or urls"
        self._section = section
        self._python = section.python
        self._model = model
        self._log_path = log_path
        self._port = section.port or free_port()
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def command(self) -> list[str]:
        """The server's command line."""
        return [
            self._python,
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(self._model),
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
            *self._section.args,
        ]

    async def __aenter__(self) -> SglangLauncher:
        """EnvironmentFault when it cannot start, UpstreamError when it ends, UpstreamTimeout when
        it is not healthy within `startup_s`; the message has the end of its log."""
        interpreter = Path(self._python).expanduser()
        if not interpreter.is_file():
            raise EnvironmentFault(
                f"generator.sglang.python {self._python!r} does not exist: name the Python of an "
                "environment that has sglang"
            )
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.sglang.keeper",
                *self.command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        try:
            await self._wait_healthy()
        except BaseException:
            await self.stop()
            raise
        logger.info("sglang server is healthy at %s", self.url)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End the server: the keeper's input closes, it ends the process group."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(TERMINATE_GRACE_S + 10):
                await process.wait()
        except TimeoutError:
            logger.warning("the sglang server's keeper does not end; it is killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _wait_healthy(self) -> None:
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        try:
            async with (
                SglangClient(self.url, self._section) as client,
                asyncio.timeout(self._section.startup_s),
            ):
                while not await client.healthy():
                    await asyncio.wait([ended], timeout=_POLL_S)
                    if ended.done():
                        raise UpstreamError(
                            f"the sglang server ended with status {ended.result()} before it was "
                            f"ready; the end of {self._log_path}:\n{self._log_tail()}"
                        )
        except TimeoutError:
            raise UpstreamTimeout(
                "the sglang server was not ready within generator.sglang.startup_s "
                f"({self._section.startup_s:.0f} s); the end of {self._log_path}:\n"
                f"{self._log_tail()}"
            ) from None
        finally:
            if not ended.done():
                ended.cancel()
                await asyncio.gather(ended, return_exceptions=True)

    def _log_tail(self) -> str:
        data = self._log_path.read_bytes()[-_LOG_TAIL_BYTES:]
        return data.decode("utf-8", "replace").strip()


def free_port() -> int:
    """A port of the loopback address that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
