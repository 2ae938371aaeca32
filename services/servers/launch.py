"""An SGLang server that belongs to the run: started, waited for, stopped, and started again.

SGLang pins its own torch, so it runs under the interpreter of an environment of its own. Its output
goes to a log file in the run folder. A keeper process (keeper.py) makes sure that it ends with the
generator. Who watches it is fleet.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from pathlib import Path

from services.servers.flags import ServerPlan, command
from services.servers.keeper import TERMINATE_GRACE_S
from services.servers.sglang import SglangServer
from shared.config.servers import SglangSection
from shared.errors import EnvironmentFault, UpstreamError, UpstreamTimeout

logger = logging.getLogger(__name__)
_POLL_S = 0.5
_LOG_TAIL_BYTES = 2000


class ServerProcess:
    """One server of the run at `url`; the same object starts it again after it has ended."""

    def __init__(
        self, section: SglangSection, model: Path, plan: ServerPlan, log_path: Path
    ) -> None:
        self.plan = plan
        self.url = f"http://127.0.0.1:{plan.port}"
        self._section = section
        self._model = model
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and return once it is healthy.

        EnvironmentFault when it cannot start, UpstreamError when it ends, UpstreamTimeout when it
        is not healthy within `startup_s`; the message has the end of its log.
        """
        assert self._process is None, "stop comes first"
        words = command(self._section, self._model, self.plan.port)
        if not Path(words[0]).expanduser().is_file():
            raise EnvironmentFault(
                f"generator.sglang.python {words[0]!r} does not exist: name the Python of an "
                "environment that has sglang"
            )
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.servers.keeper",
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.plan.environment},
            )
        try:
            await self._wait_healthy()
        except BaseException:
            await self.stop()
            raise
        logger.info("sglang server %d is healthy at %s", self.plan.number, self.url)

    async def wait_ended(self) -> str:
        """Until the process has ended; how it ended, with the end of its log."""
        assert self._process is not None
        status = await self._process.wait()
        return f"ended with status {status}; the end of {self._log_path}:\n{self._log_tail()}"

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
        ended = asyncio.create_task(self.wait_ended())
        try:
            async with (
                SglangServer(self.url, self._section) as server,
                asyncio.timeout(self._section.startup_s),
            ):
                while not await server.healthy():
                    await asyncio.wait([ended], timeout=_POLL_S)
                    if ended.done():
                        raise UpstreamError(
                            f"sglang server {self.plan.number} was not ready yet when it "
                            f"{ended.result()}"
                        )
        except TimeoutError:
            raise UpstreamTimeout(
                f"sglang server {self.plan.number} was not ready within "
                f"generator.sglang.startup_s ({self._section.startup_s:.0f} s); the end of "
                f"{self._log_path}:\n{self._log_tail()}"
            ) from None
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    def _log_tail(self) -> str:
        data = self._log_path.read_bytes()[-_LOG_TAIL_BYTES:]
        return data.decode("utf-8", "replace").strip()


def free_ports(count: int) -> list[int]:
    """Different ports of the loopback address that are free now."""
    with contextlib.ExitStack() as stack:
        probes = [
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            for _ in range(count)
        ]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
