"""The command line's connection to a control plane: plain HTTP calls and the event stream.

Errors come back as the classes of `shared.errors`, so that `main` turns every failure into one
message and one exit code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from services.control_plane.problems import error_from_response
from shared.errors import UnreachableError, UpstreamError, UpstreamTimeout

DEFAULT_URL = "http://127.0.0.1:8080"


@dataclass(frozen=True)
class ServerEvent:
    """One server-sent event: its name, its data, and its id when it has one."""

    name: str
    data: Any
    id: str | None


class Api:
    """A control plane at `url`; the token comes from DFLASH_MESH_TOKEN."""

    def __init__(self, url: str | None = None, *, timeout_s: float = 30.0) -> None:
        self.url = (url or os.environ.get("DFLASH_MESH_URL") or DEFAULT_URL).rstrip("/")
        token = os.environ.get("DFLASH_MESH_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **params: Any) -> Any:
        """GET; None-valued parameters are left out."""
        return self._json("GET", path, params=_given(params))

    def post(self, path: str, body: Any = None, **params: Any) -> Any:
        return self._json("POST", path, json=body, params=_given(params))

    def delete(self, path: str, **params: Any) -> Any:
        return self._json("DELETE", path, params=_given(params))

    def items(self, path: str, **params: Any) -> Iterator[Any]:
        """Every item of a cursor-paged list."""
        cursor: str | None = None
        while True:
            page = self.get(path, cursor=cursor, **params)
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def events(self, path: str, *, last_id: str | None = None) -> Iterator[ServerEvent]:
        """Server-sent events until the server ends the stream; UpstreamTimeout after 30 s mute."""
        headers = {"Accept": "text/event-stream"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        try:
            with self._http.stream("GET", path, headers=headers) as response:
                if response.status_code >= 400:
                    response.read()
                    raise error_from_response(response)
                yield from parse_events(response.iter_lines())
        except httpx.TimeoutException as error:
            raise UpstreamTimeout(f"{self.url} sent no event for 30 s") from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _json(self, method: str, path: str, **request: Any) -> Any:
        try:
            response = self._http.request(method, path, **request)
        except httpx.TimeoutException as error:
            raise UpstreamTimeout(f"{self.url} did not answer {method} {path} in time") from error
        except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise self._unreachable(error) from error
        if response.status_code >= 400:
            raise error_from_response(response)
        if not response.content:
            return None
        try:
            return response.json()
        except json.JSONDecodeError as error:
            raise UpstreamError(
                f"{method} {self.url}{path} answered something that is not JSON; is it a "
                "dflash-mesh control plane?"
            ) from error

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"no control plane answers at {self.url} ({error}); start one with 'dflash-mesh up', "
            "or give --url or DFLASH_MESH_URL"
        )


def parse_events(lines: Iterator[str]) -> Iterator[ServerEvent]:
    """Events of a text/event-stream; comments and retry fields are skipped."""
    name, event_id, data = "message", None, list[str]()
    for line in lines:
        if line == "":
            if data:
                yield ServerEvent(name, json.loads("\n".join(data)), event_id)
            name, event_id, data = "message", None, []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "id":
            event_id = value
        elif field == "data":
            data.append(value)


def _given(params: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}
