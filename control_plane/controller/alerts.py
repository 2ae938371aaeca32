"""Alerts to a webhook: blocked, failed, breaker, stall. They never stop or slow a run.

The address comes from the environment variable that `supervision.webhook_env` names; it is a
secret, so it appears in no log. An alert is one POST of JSON: kind, run_id, run_name, message.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Literal

import httpx

from control_plane.store.tables import Run

logger = logging.getLogger(__name__)
AlertKind = Literal["blocked", "failed", "breaker", "stall"]
_TIMEOUT_S = 5.0


class Alerts:
    """Sends alerts in the background; `close` waits for those under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, run: Run, webhook_env: str | None, kind: AlertKind, message: str) -> None:
        """Start to send, if the run names a webhook and the variable is set."""
        if webhook_env is None:
            return
        url = os.environ.get(webhook_env)
        if not url:
            logger.warning("supervision.webhook_env names %s, which is not set", webhook_env)
            return
        body = {"kind": kind, "run_id": run.id, "run_name": run.name, "message": message}
        task = asyncio.create_task(_post(url, body), name=f"alert-{kind}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks)


async def _post(url: str, body: dict[str, str]) -> None:
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S) as http:
            response = await http.post(url, json=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        logger.warning("the alert %r was not delivered: %s", body["kind"], type(error).__name__)
        return
    if response.status_code >= 400:
        logger.warning(
            "the alert %r was not taken: the webhook answered %d",
            body["kind"],
            response.status_code,
        )
