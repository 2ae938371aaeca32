"""The event stream over a real server: opening, live events, resuming, slow clients, the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from control_plane.broadcast import QUEUE_EVENTS, Broadcaster, StreamEvent
from control_plane.routes import events as events_route
from control_plane.server import listen
from control_plane.store import events
from tests.integration.control_plane.conftest import Plane


class Stream:
    """Reads server-sent events."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, str]:
        event: dict[str, str] = {}
        async for line in self._lines:
            if line == "":
                return event
            name, _, value = line.partition(":")
            event[name] = value.removeprefix(" ")
        raise EOFError

    async def until(self, name: str) -> list[dict[str, str]]:
        """Events up to and with the first of this name."""
        found = [await self.next()]
        while found[-1].get("event") != name:
            found.append(await self.next())
        return found


@asynccontextmanager
async def served(plane: Plane) -> AsyncIterator[str]:
    sock = listen("127.0.0.1", 0)
    config = uvicorn.Config(plane.app, lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        plane.mesh.broadcaster.close()
        server.should_exit = True
        await serving


@asynccontextmanager
async def stream(url: str, **headers: str) -> AsyncIterator[Stream]:
    async with (
        httpx.AsyncClient(trust_env=False) as client,
        client.stream("GET", url, headers=headers) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)


async def log(plane: Plane, run_id: str, number: int) -> None:
    await plane.mesh.database.write(events.append, run_id, "log", {"n": number}, now=1.0)


def numbers(found: list[dict[str, str]]) -> list[int]:
    return [json.loads(event["data"])["n"] for event in found if event.get("event") == "log"]


async def test_a_new_client_gets_the_state_and_then_what_happens(plane: Plane) -> None:
    run = await plane.start_run()
    await log(plane, run["id"], 1)
    async with served(plane) as url, stream(f"{url}/v1/runs/{run['id']}/events") as client:
        opening = await client.until("run")
        assert numbers(opening) == [1]
        assert [event["event"] for event in opening][-2:] == ["workers", "run"]
        assert json.loads(opening[-1]["data"])["state"] == "queued"
        await log(plane, run["id"], 2)
        plane.mesh.broadcaster.publish(run["id"], StreamEvent("point", {"name": "loss"}))
        live = await client.until("point")
        assert numbers(live) == [2]
        assert "id" in live[0] and "id" not in live[-1]
        await plane.client.post(f"/v1/runs/{run['id']}/stop")
        changed = await client.until("run")
        assert json.loads(changed[-1]["data"])["state"] == "stopped"


async def test_last_event_id_resumes_without_gap_or_repeat(plane: Plane) -> None:
    run = await plane.start_run()
    async with served(plane) as url:
        address = f"{url}/v1/runs/{run['id']}/events"
        async with stream(address) as client:
            position = (await client.until("run"))[-1]["id"]
        for number in range(20):
            await log(plane, run["id"], number)
        async with stream(address, **{"Last-Event-ID": position}) as client:
            opening = await client.until("run")
            assert numbers(opening) == list(range(20))
            await log(plane, run["id"], 20)
            assert numbers([await client.next()]) == [20]


async def test_events_that_come_while_a_client_opens_are_sent_once(plane: Plane) -> None:
    run = await plane.start_run()
    async with served(plane) as url:
        writing = asyncio.create_task(_write(plane, run["id"], 60))
        async with stream(f"{url}/v1/runs/{run['id']}/events?since=0") as client:
            found: list[int] = []
            while len(found) < 60:
                found += numbers([await client.next()])
        await writing
    assert found == list(range(60))


async def _write(plane: Plane, run_id: str, count: int) -> None:
    for number in range(count):
        await log(plane, run_id, number)


async def test_a_quiet_stream_shows_that_it_lives(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_route, "KEEP_ALIVE_S", 0.05)
    run = await plane.start_run()
    async with served(plane) as url, stream(f"{url}/v1/runs/{run['id']}/events") as client:
        await client.until("run")
        assert await client.next() == {"event": "ping", "data": "{}"}


async def test_streams_end_with_the_server(plane: Plane) -> None:
    run = await plane.start_run()
    async with served(plane) as url, stream(f"{url}/v1/runs/{run['id']}/events") as client:
        await client.until("run")
        plane.mesh.broadcaster.close()
        with pytest.raises(EOFError):
            await client.next()


async def test_a_slow_client_is_dropped_and_the_others_go_on() -> None:
    broadcaster = Broadcaster()
    slow, quick = broadcaster.subscribe("r"), broadcaster.subscribe("r")
    other: Any = broadcaster.subscribe("other")
    for number in range(QUEUE_EVENTS + 1):
        broadcaster.publish("r", StreamEvent("log", number, number))
        taken = await quick.next(1.0)
        assert taken is not None and taken.id == number
    seen = 0
    while not slow.ended:
        assert await slow.next(1.0) is not None
        seen += 1
    assert seen == QUEUE_EVENTS
    assert not quick.ended and not other.ended
    assert await other.next(0.0) is None
    broadcaster.unsubscribe("r", quick)
    assert not broadcaster.has_listeners("r")
