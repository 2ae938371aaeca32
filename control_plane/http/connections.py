"""Connections that say nothing: they are ended before they use up the process's open files.

    connected --whole request head--> served (keep-alive, streams: uvicorn's own limits)
              --head_s passed, or too many others wait--> closed

uvicorn ends a connection that is idle after an answer, but waits for ever for the first byte, and
for the rest of a head that has begun. A response under way (an event stream) is never cut.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

logger = logging.getLogger(__name__)
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TELL_AGAIN_S = 60.0


def guarded_protocol(*, head_s: float, max_waiting: int) -> type[asyncio.Protocol]:
    """uvicorn's protocol, with `head_s` for each request head and at most `max_waiting`
    connections that have sent none yet: the oldest of them goes first."""
    waiting: dict[Any, None] = {}

    class GuardedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._seen_cycle = self.cycle
            self._timer = self.loop.call_later(head_s, self._look)
            waiting[self] = None
            if len(waiting) > max_waiting:
                next(iter(waiting))._close()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None:
                waiting.pop(self, None)

        def connection_lost(self, exc: Exception | None) -> None:
            waiting.pop(self, None)
            self._timer.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            is_busy = self.cycle is not None and not self.cycle.response_complete
            if not is_busy and self.cycle is self._seen_cycle:
                self._close()
                return
            self._seen_cycle = self.cycle
            self._timer = self.loop.call_later(head_s, self._look)

        def _close(self) -> None:
            waiting.pop(self, None)
            self.transport.close()

    return GuardedProtocol


def quiet_when_exhausted(
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """An exception handler of the loop that tells of connections which cannot be accepted once a
    minute: asyncio tells of each attempt, hundreds a second, with a traceback."""
    told_s: float | None = None

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told_s
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _EXHAUSTED):
            loop.default_exception_handler(context)
        elif told_s is None or clock() - told_s >= _TELL_AGAIN_S:
            told_s = clock()
            logger.error("no connection can be accepted: %s; raise ulimit -n", error.strerror)

    return handle
