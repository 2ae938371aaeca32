"""The registry protocol over HTTP: register, heartbeat, leave, and reading a run.

Every call either returns the parsed answer or raises: the class the control plane reported, or
`UnreachableError` / `UpstreamTimeout` when there was no answer. A connection that the server had
closed while it was idle is opened again at once; other retries are the caller's, because only the
caller knows how long it may wait.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from services.control_plane.problems import error_from_response
from shared.api.runs import RunView
from shared.api.workers import Heartbeat, HeartbeatAnswer, WorkerLease, WorkerRegistration
from shared.errors import UnreachableError, UpstreamError, UpstreamTimeout

ModelT = TypeVar("ModelT", bound=BaseModel)
_STALE_CONNECTION = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


class ControlPlaneClient:
    """One keep-alive connection to the control plane at `url`.

    `token` travels as a bearer token; proxies of the environment are not used.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = 10.0) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url.rstrip("/")
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=timeout_s,
            trust_env=False,
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=1),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def register(self, registration: WorkerRegistration) -> WorkerLease:
        """Register an incarnation; the same one again gets the same worker id."""
        body = registration.model_dump(mode="json")
        return _parse(WorkerLease, await self._call("POST", "/v1/workers", json=body))

    async def heartbeat(self, worker_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """SupersededError when a newer incarnation is registered; NotFoundError when unknown."""
        path = f"/v1/workers/{worker_id}/heartbeat"
        body = heartbeat.model_dump(mode="json")
        return _parse(HeartbeatAnswer, await self._call("PUT", path, json=body))

    async def leave(self, worker_id: str, reason: str) -> None:
        """Say that the worker has drained and goes."""
        await self._call("DELETE", f"/v1/workers/{worker_id}", params={"reason": reason})

    async def get_run(self, run_id: str) -> RunView:
        return _parse(RunView, await self._call("GET", f"/v1/runs/{run_id}"))

    async def _call(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            try:
                response = await self._http.request(method, path, **request)
            except _STALE_CONNECTION:
                response = await self._http.request(method, path, **request)
        except httpx.TimeoutException as error:
            raise UpstreamTimeout(
                f"the control plane at {self.url} did not answer {method} {path} in time"
            ) from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise UnreachableError(
                f"the control plane at {self.url} cannot be reached ({error}); "
                "check that it runs and that the address is right"
            ) from error
        if response.status_code >= 400:
            raise error_from_response(response)
        return response


def _parse(model: type[ModelT], response: httpx.Response) -> ModelT:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise UpstreamError(
            f"{response.request.url} answered something that is not a {model.__name__}; "
            f"is it a dflash-mesh control plane of the same version? ({error.error_count()} errors)"
        ) from error
