"""JSON over HTTP to one server: one session, and failures told apart by what helps against them.

aiohttp and orjson, since a client that answers to hundreds of requests at once must cost little;
tests/benchmarks/bench_http_clients.py has the figures. A response is read whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from services.servers.base import CallRefused, NotServed, PromptRefused, ServerUnavailable
from shared.config.servers import ServersSection
from shared.errors import UpstreamError, UpstreamTimeout

EXCERPT_CHARACTERS = 300
_CHECK_TIMEOUT_S = 30.0
_HEALTH_TIMEOUT_S = 5.0
# Below the 5 s after which uvicorn closes an idle connection, under the feet of a request.
_KEEP_ALIVE_S = 4.0
_JSON = {"Content-Type": "application/json"}


class HttpJson:
    """Calls to one server. `secret` is sent as a bearer token and kept out of every message."""

    def __init__(self, url: str, section: ServersSection, *, secret: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.section = section
        self._secret = secret
        self._headers = dict(_JSON)
        if secret is not None:
            self._headers["Authorization"] = f"Bearer {secret}"
        self._session: aiohttp.ClientSession | None = None
        self._timeout = self._limit(section.request_timeout_s)
        self.check_timeout = self._limit(min(section.request_timeout_s, _CHECK_TIMEOUT_S))

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def healthy(self) -> bool:
        """Whether GET /health answers 200; no error when it does not."""
        try:
            status, _ = await self._send("GET", "/health", None, self._limit(_HEALTH_TIMEOUT_S))
        except UpstreamError:
            return False
        return status == 200

    async def get(self, path: str) -> Any:
        """Decoded JSON of a GET within the time of a check."""
        return await self.call("GET", path, timeout=self.check_timeout)

    async def text(self, path: str) -> str:
        """Text of a GET within the time of a check."""
        status, data = await self._send("GET", path, None, self.check_timeout)
        self._raise_for(status, f"{self.url}{path}", data)
        return data.decode("utf-8", "replace")

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> Any:
        """Decoded JSON of a 200.

        Raises PromptRefused (400, 413, 422), CallRefused (other 4xx), NotServed (no connection,
        429, 502, 503, 504), ServerUnavailable (connection broke), UpstreamTimeout, UpstreamError.
        """
        data = orjson.dumps(body) if body is not None else None
        status, answer = await self._send(method, path, data, timeout or self._timeout)
        where = f"{self.url}{path}"
        self._raise_for(status, where, answer)
        try:
            return orjson.loads(answer)
        except orjson.JSONDecodeError:
            raise UpstreamError(f"{where} does not answer with JSON") from None

    async def _send(
        self, method: str, path: str, data: bytes | None, timeout: aiohttp.ClientTimeout
    ) -> tuple[int, bytes]:
        where = f"{self.url}{path}"
        if self._session is None:
            # Connections are bounded by the requests in flight, which the generator limits.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
                headers=self._headers,
                trust_env=False,
            )
        try:
            async with self._session.request(
                method, where, data=data, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, await response.read()
        except aiohttp.ConnectionTimeoutError:
            raise NotServed(f"{where}: no connection in time; is the server up?") from None
        except (TimeoutError, aiohttp.ServerTimeoutError):
            raise UpstreamTimeout(
                f"{where} did not answer in time ({self.section.path}.request_timeout_s)"
            ) from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, ValueError) as error:
            raise UpstreamError(f"{self.url!r} is not a usable address: {error}") from None
        except aiohttp.ClientConnectorError as error:
            cause = error.os_error.strerror or error.os_error
            raise NotServed(f"{where} cannot be reached: {cause}") from None
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            raise ServerUnavailable(
                f"{where} broke off: {str(error) or type(error).__name__}"
            ) from None

    def _raise_for(self, status: int, where: str, data: bytes) -> None:
        if status == 200:
            return
        excerpt = data[: 4 * EXCERPT_CHARACTERS].decode("utf-8", "replace")
        if self._secret:
            excerpt = excerpt.replace(self._secret, "[redacted]")
        detail = f"{where} answers {status}: {excerpt[:EXCERPT_CHARACTERS].strip()}"
        if status in (429, 502, 503, 504):
            raise NotServed(detail)
        if status in (400, 413, 422):
            raise PromptRefused(detail)
        if status < 500:
            raise CallRefused(detail)
        raise UpstreamError(detail)

    def _limit(self, total_s: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=total_s, sock_connect=self.section.connect_timeout_s)
