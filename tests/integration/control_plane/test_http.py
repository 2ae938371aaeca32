"""What every call goes through: problems, limits, JSON, ids, tags, paging, idempotency."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from control_plane.http.body import MAX_BODY_BYTES
from tests.integration.control_plane.conftest import Plane, PlaneFactory

DEMO = {"preset": "demo", "overrides": {"data.num_prompts": 12}}


def assert_problem(response: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["type"] == f"urn:dflash-mesh:problem:{slug}"
    assert problem["status"] == status
    assert problem["title"] and problem["detail"] and problem["instance"].startswith("/")
    return problem


async def test_unknown_paths_and_methods_are_problems(plane: Plane) -> None:
    assert_problem(await plane.client.get("/v1/nope"), 404, "not-found")
    assert_problem(await plane.client.post("/nope"), 404, "not-found")
    assert_problem(await plane.client.get("/v1/runs/none"), 404, "not-found")
    response = await plane.client.patch("/v1/runs")
    problem = assert_problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == "GET, POST"
    assert "GET, POST" in problem["detail"]


async def test_every_wrong_field_is_named_at_once(plane: Plane) -> None:
    overrides = {"trainer.lrr": 1, "trainer.lr": -1, "batcher.max_length": "long"}
    body = {"preset": "demo", "overrides": overrides}
    problem = assert_problem(
        await plane.client.post("/v1/runs", json=body), 422, "invalid-configuration"
    )
    errors = {error["field"]: error for error in problem["errors"]}
    assert set(errors) == set(overrides)
    assert errors["trainer.lrr"]["suggestion"] == "lr"
    unknown = await plane.client.post("/v1/runs", json={"presett": "demo"})
    problem = assert_problem(unknown, 422, "invalid-request")
    assert problem["errors"][0]["field"] == "body.presett"


async def test_large_bodies_are_refused_however_they_are_framed(plane: Plane) -> None:
    large = b"[" + b" " * MAX_BODY_BYTES + b"]"
    headers = {"Content-Type": "application/json"}
    response = await plane.client.post("/v1/runs", content=large, headers=headers)
    assert_problem(response, 413, "body-too-large")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 1000 + 1):
            yield b" " * 1000

    response = await plane.client.post("/v1/runs", content=chunks(), headers=headers)
    assert_problem(response, 413, "body-too-large")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"config": NaN}',
        b'{"config": {"seed": Infinity}}',
        b'{"overrides": {"a": 1e999}}',
        b'{"preset": "\\ud800"}',
        b'{"preset": "a\\u0000b"}',
        b'{"overrides": {"a\\u0000": 1}}',
        b'{"overrides": {"seed": 99999999999999999999}}',
        b'{"overrides": {"seed": 18446744073709551615}}',
        b'{"config": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"config": {"a": ' + b"[" * 40 + b"]" * 40 + b"}}",
        b"\xff\xfe",
    ],
)
async def test_json_that_nothing_behind_could_hold_is_refused(plane: Plane, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = await plane.client.post("/v1/runs", content=body, headers=headers)
    assert_problem(response, 400, "bad-request")


@pytest.mark.parametrize(
    "overrides",
    [
        {"seed": 2**63 - 1},
        {"seed": 1e30},
        {"": 1},
        {"a..b": 1},
        {"target.path": "x" * 5000},
        {"data.prompts": "/dev/null/x"},
        {"archive.destination": "file:///etc"},
        {"archive.destination": "s3://user:pass@bucket/x"},
        {"name": "../up"},
        {"trainer": None},
        {"stages": []},
    ],
)
async def test_odd_values_never_break_the_server(plane: Plane, overrides: dict[str, Any]) -> None:
    body = {"preset": "demo", "overrides": {"data.num_prompts": 12, **overrides}}
    response = await plane.client.post("/v1/runs?dry_run=true", json=body)
    assert response.status_code in (200, 400, 403, 422), response.text


async def test_a_body_must_say_that_it_is_json(plane: Plane) -> None:
    response = await plane.client.post("/v1/runs", content=b'{"preset": "demo"}')
    assert_problem(response, 415, "unsupported-media-type")
    response = await plane.client.post("/v1/runs", data={"preset": "demo"})
    assert_problem(response, 415, "unsupported-media-type")


async def test_request_ids_are_echoed_when_plain(plane: Plane) -> None:
    given = await plane.client.get("/healthz", headers={"X-Request-ID": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    for odd in ("a b", "x" * 200, "a;b"):
        made = await plane.client.get("/v1/nope", headers={"X-Request-ID": odd})
        assert made.headers["x-request-id"] not in ("", odd)


async def test_an_error_inside_is_a_problem_and_tells_nothing(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("the secret detail")

    await plane.start_run()
    monkeypatch.setattr("control_plane.routes.runs.run_view", broken)
    response = await plane.client.get("/v1/runs", headers={"X-Request-ID": "find-me"})
    problem = assert_problem(response, 500, "internal")
    assert "find-me" in problem["detail"] and "secret" not in response.text


async def test_an_unchanged_run_costs_no_body(plane: Plane) -> None:
    run = await plane.start_run()
    url = f"/v1/runs/{run['id']}"
    first = await plane.client.get(url)
    tag = first.headers["etag"]
    for given in (tag, f'"other", W/{tag}', "*"):
        again = await plane.client.get(url, headers={"If-None-Match": given})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    await plane.client.post(f"{url}/stop")
    changed = await plane.client.get(url, headers={"If-None-Match": tag})
    assert changed.status_code == 200 and changed.headers["etag"] != tag


async def test_lists_are_paged_without_gaps_or_repeats(plane: Plane) -> None:
    made = [(await plane.start_run())["id"] for _ in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await plane.client.get("/v1/runs", params=params)).json()
        seen += [run["id"] for run in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        late = (await plane.start_run())["id"] if len(seen) == 2 else None
    assert sorted(seen) == sorted(made)
    assert late not in seen
    for wrong in ("x", "!!!", "WzEsMl0", "bnVsbA", "W251bGwsImEiXQ", "é"):
        response = await plane.client.get("/v1/runs", params={"cursor": wrong})
        assert_problem(response, 400, "bad-request")
    assert_problem(await plane.client.get("/v1/runs?limit=0"), 422, "invalid-request")


async def test_the_same_key_gives_the_first_answer(plane: Plane) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = await plane.client.post("/v1/runs", json=DEMO, headers=headers)
    again = await plane.client.post("/v1/runs", json=DEMO, headers=headers)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.content == again.content
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    listed = (await plane.client.get("/v1/runs")).json()["items"]
    assert len(listed) == 1
    other = await plane.client.post("/v1/runs", json={"preset": "demo"}, headers=headers)
    assert_problem(other, 422, "idempotency-key-reused")
    elsewhere = await plane.client.post("/v1/backups", headers=headers)
    assert_problem(elsewhere, 422, "idempotency-key-reused")
    wrong = await plane.client.post("/v1/runs", json=DEMO, headers={"Idempotency-Key": "a b"})
    assert_problem(wrong, 400, "bad-request")


async def test_concurrent_duplicates_are_carried_out_once(plane: Plane) -> None:
    headers = {"Idempotency-Key": "key-2"}
    answers = await asyncio.gather(
        *(plane.client.post("/v1/runs", json=DEMO, headers=headers) for _ in range(8))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len((await plane.client.get("/v1/runs")).json()["items"]) == 1


async def test_an_error_of_the_server_frees_the_key(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Idempotency-Key": "key-3"}

    async def broken(*_: object, **__: object) -> str:
        raise RuntimeError("once")

    with monkeypatch.context() as patched:
        patched.setattr(plane.mesh.controller, "submit", broken)
        failed = await plane.client.post("/v1/runs", json=DEMO, headers=headers)
    assert_problem(failed, 500, "internal")
    assert (await plane.client.post("/v1/runs", json=DEMO, headers=headers)).status_code == 202


async def test_keys_outlive_the_process(make_plane: PlaneFactory) -> None:
    headers = {"Idempotency-Key": "key-4"}
    async with make_plane() as plane:
        first = await plane.client.post("/v1/runs", json=DEMO, headers=headers)
    async with make_plane() as plane:
        again = await plane.client.post("/v1/runs", json=DEMO, headers=headers)
    assert again.json() == first.json()
