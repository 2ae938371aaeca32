"""Who may call: hosts, origins, the token, the page's session."""

from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.app import create_app
from control_plane.http.sessions import COOKIE, LIFETIME_S, is_valid_session, make_session
from control_plane.settings import Settings
from shared.errors import UserError
from tests.helpers.idle_launcher import IdleLauncher
from tests.integration.control_plane.conftest import Plane, PlaneFactory
from tests.integration.control_plane.test_http import assert_problem

TOKEN = "correct-horse-battery-staple"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
ORIGIN = {"Origin": "http://localhost:8080"}


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8080", "", "127.0.0.2"])
async def test_names_that_are_not_ours_are_refused(plane: Plane, host: str) -> None:
    response = await plane.client.get("/v1/runs", headers={"Host": host})
    assert_problem(response, 403, "forbidden-origin")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:8080", "[::1]:8080"])
async def test_loopback_names_are_ours(plane: Plane, host: str) -> None:
    assert (await plane.client.get("/v1/runs", headers={"Host": host})).status_code == 200


async def test_more_names_can_be_allowed(make_plane: PlaneFactory) -> None:
    async with make_plane(allowed_hosts=["Mesh.example"]) as plane:
        headers = {"Host": "mesh.example"}
        assert (await plane.client.get("/v1/runs", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:9999", "file://", "http://[", ""]
)
async def test_pages_of_other_places_may_not_call(plane: Plane, origin: str) -> None:
    response = await plane.client.post("/v1/backups", headers={"Origin": origin})
    assert_problem(response, 403, "forbidden-origin")


async def test_our_own_page_may_call(plane: Plane) -> None:
    assert (await plane.client.post("/v1/backups", headers=ORIGIN)).status_code == 202
    proxied = {"Host": "localhost", "Origin": "https://localhost"}
    assert (await plane.client.post("/v1/backups", headers=proxied)).status_code == 202
    sneaky = {"Sec-Fetch-Site": "cross-site"}
    response = await plane.client.post("/v1/backups", headers=sneaky)
    assert_problem(response, 403, "forbidden-origin")


async def test_the_token_is_needed_and_enough(make_plane: PlaneFactory) -> None:
    async with make_plane(token=TOKEN) as plane:
        for path in ("/v1/runs", "/v1/workers", "/metrics", "/v1/nope"):
            response = await plane.client.get(path)
            assert_problem(response, 401, "unauthenticated")
            assert response.headers["www-authenticate"] == "Bearer"
        for wrong in ("Bearer", "Bearer no", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
            response = await plane.client.get("/v1/runs", headers={"Authorization": wrong})
            assert_problem(response, 401, "unauthenticated")
        latin = await plane.client.get("/v1/runs", headers={"Authorization": b"Bearer \xe9"})
        assert_problem(latin, 401, "unauthenticated")
        assert (await plane.client.get("/v1/runs", headers=BEARER)).status_code == 200
        for path in ("/healthz", "/readyz", "/version", "/docs", "/openapi.json"):
            assert (await plane.client.get(path)).status_code == 200


async def test_the_page_signs_in_and_out(make_plane: PlaneFactory) -> None:
    async with make_plane(token=TOKEN) as plane:
        client = plane.client
        asked = (await client.get("/v1/session")).json()
        assert asked == {"required": True, "signed_in": False}
        refused = await client.post("/v1/session", json={"token": "no"}, headers=ORIGIN)
        assert_problem(refused, 401, "unauthenticated")
        signed = await client.post("/v1/session", json={"token": TOKEN}, headers=ORIGIN)
        assert signed.json() == {"required": True, "signed_in": True}
        cookie = signed.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and TOKEN not in cookie
        assert (await client.get("/v1/runs")).status_code == 200
        bare = await client.post("/v1/backups")
        assert_problem(bare, 403, "forbidden-origin")
        assert (await client.post("/v1/backups", headers=ORIGIN)).status_code == 202
        assert (await client.delete("/v1/session", headers=ORIGIN)).status_code == 204
        assert_problem(await client.get("/v1/runs"), 401, "unauthenticated")


def test_sessions_end_and_cannot_be_made_up() -> None:
    session = make_session(TOKEN, 1000.0)
    assert is_valid_session(session, TOKEN, 1000.0 + LIFETIME_S - 1)
    assert not is_valid_session(session, TOKEN, 1000.0 + LIFETIME_S)
    assert not is_valid_session(session, "another", 1000.0)
    expiry, mac = session.split(".")
    for forged in (f"{int(expiry) + 1}.{mac}", expiry, "", "é.é", f".{mac}", f"{expiry}."):
        assert not is_valid_session(forged, TOKEN, 1000.0)


async def test_an_odd_cookie_is_no_session(make_plane: PlaneFactory) -> None:
    async with make_plane(token=TOKEN) as plane:
        for cookie in (f"{COOKIE}=x", f"{COOKIE}=", ";;;=", f"{COOKIE}=1.\udce9"):
            headers = {"Cookie": cookie.encode("utf-8", "surrogateescape")}
            response = await plane.client.get("/v1/runs", headers=headers)
            assert_problem(response, 401, "unauthenticated")


async def test_secrets_stay_out_of_the_database(make_plane: PlaneFactory, tmp_path: Path) -> None:
    async with make_plane(token=TOKEN) as plane:
        run = (
            await plane.client.post(
                "/v1/runs",
                json={"preset": "demo", "overrides": {"data.num_prompts": 12}},
                headers=BEARER,
            )
        ).json()
        registration = {
            "run_id": run["id"],
            "role": "batcher",
            "rank": 0,
            "incarnation": "abcdef0123",
            "host": "here",
            "pid": 1,
            "pid_birth": "boot/1",
        }
        headers = {**BEARER, "Idempotency-Key": "worker-1"}
        url = "/v1/workers"
        first = await plane.client.post(url, json=registration, headers=headers)
        again = await plane.client.post(url, json=registration, headers=headers)
        secrets = [TOKEN]
        if first.status_code == 201:
            assert again.json()["worker_id"] == first.json()["worker_id"]
            secrets += [
                value for name, value in first.json()["link_keys"].items() if "secret" in name
            ]
        else:
            assert first.status_code == again.status_code == 409
        other = {**registration, "rank": 1}
        reused = await plane.client.post(url, json=other, headers=headers)
        assert_problem(reused, 422, "idempotency-key-reused")
        await plane.client.post("/v1/session", json={"token": TOKEN}, headers=ORIGIN)
    for path in (tmp_path / "data").glob("control_plane.sqlite*"):
        data = path.read_bytes()
        for secret in secrets:
            assert secret.encode() not in data


def test_a_reachable_control_plane_must_have_a_token(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "mesh.example"):
        with pytest.raises(UserError, match="DFLASH_MESH_TOKEN"):
            create_app(Settings(tmp_path, host=host), IdleLauncher())
    create_app(Settings(tmp_path, host="0.0.0.0", token=TOKEN), IdleLauncher())
    with pytest.raises(UserError, match="ASCII"):
        create_app(Settings(tmp_path, token="a b"), IdleLauncher())
