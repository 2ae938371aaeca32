"""`GET /v1/runs/{id}/events`: server-sent events of one run.

The stream subscribes first and reads the database second, so that nothing falls between; live
events that the read has covered already are left out by their id. A new client gets the last log
lines and the state of now; one with Last-Event-ID gets what was stored since. When nothing happens
a ping goes out, so that the client can tell a quiet run from a dead connection.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query
from sqlmodel import Session
from starlette.responses import StreamingResponse

from control_plane.broadcast import StreamEvent
from control_plane.http.documentation import problems
from control_plane.http.state import Mesh, MeshState
from control_plane.store import events, runs, workers
from control_plane.store.views import run_view, slot_views

router = APIRouter(prefix="/v1/runs", tags=["runs"])

KEEP_ALIVE_S = 5.0
RECENT_LOG_LINES = 100
REPLAY_LIMIT = 5000
_MAX_ID = 10**18 - 1
_EVENT_SCHEMA = {
    "description": "One event of the stream",
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"type": "string"},
        "data": {"type": "string", "description": "JSON"},
        "id": {"type": "string", "description": "Of stored events only"},
    },
}


@dataclass(frozen=True)
class _Opening:
    """What a client gets first; every stored event up to `last_id` is covered by it."""

    events: list[StreamEvent]
    last_id: int


@router.get(
    "/{run_id}/events",
    summary="Server-sent events: run, workers, point, log, checkpoint, evaluation, export, report",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "A stream of events; ids resume it by Last-Event-ID; ping if quiet",
            "content": {"text/event-stream": {"schema": _EVENT_SCHEMA}},
        }
    },
    openapi_extra=problems(404),
)
async def stream_events(
    run_id: str,
    mesh: Mesh,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,18}$")] = None,
    since: Annotated[
        int | None, Query(ge=0, le=_MAX_ID, description="As Last-Event-ID, for a first connection")
    ] = None,
) -> StreamingResponse:
    after = int(last_event_id) if last_event_id is not None else since
    await mesh.database.read(runs.get, run_id)  # 404 while an answer can still be chosen
    return StreamingResponse(
        _stream(mesh, run_id, after),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _stream(mesh: MeshState, run_id: str, after: int | None) -> AsyncIterator[bytes]:
    ends_at = time.monotonic() + mesh.settings.max_stream_s
    subscription = mesh.broadcaster.subscribe(run_id)
    try:
        opening = await mesh.database.read(_opening, run_id, after)
        for event in opening.events:
            yield encode_event(event)
        while (left_s := ends_at - time.monotonic()) > 0:
            live = await subscription.next(min(KEEP_ALIVE_S, left_s))
            if live is None and subscription.ended:
                return
            if live is None:
                yield encode_event(StreamEvent("ping", {}))
            elif live.id is None or live.id > opening.last_id:
                yield encode_event(live)
    finally:
        mesh.broadcaster.unsubscribe(run_id, subscription)


def _opening(session: Session, run_id: str, after: int | None) -> _Opening:
    run = runs.get(session, run_id)
    last_id = events.last_id(session, run_id)
    if after is None:
        stored = events.list_last(session, run_id, ["log"], limit=RECENT_LOG_LINES)
    else:
        stored = events.list_after(session, run_id, after, limit=REPLAY_LIMIT)
    now = time.time()
    slots = slot_views(workers.list_for_run(session, run_id), now)
    return _Opening(
        events=[
            *(StreamEvent(event.name, event.data, event.id) for event in stored),
            StreamEvent("workers", [view.model_dump(mode="json") for view in slots]),
            StreamEvent("run", run_view(run).model_dump(mode="json"), last_id),
        ],
        last_id=last_id,
    )


def encode_event(event: StreamEvent) -> bytes:
    """One event of text/event-stream; JSON has no line breaks of its own."""
    number = b"" if event.id is None else b"id: %d\n" % event.id
    return b"%sevent: %s\ndata: %s\n\n" % (number, event.name.encode(), orjson.dumps(event.data))
