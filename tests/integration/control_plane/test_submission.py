"""What is wrong with a run is said when it is submitted, all of it at once."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.integration.control_plane.conftest import Plane
from tests.integration.control_plane.test_exports import save_checkpoint
from tests.integration.control_plane.test_http import assert_problem


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """None in the environment, none in files, and nobody to ask."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "DFLASH_MESH_S3"))]:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "BOTO_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


async def submit(plane: Plane, overrides: dict[str, Any]) -> Any:
    return await plane.client.post("/v1/runs", json={"preset": "demo", "overrides": overrides})


def fields(answer: Any) -> list[str]:
    return [error["field"] for error in answer.json()["errors"]]


async def test_wrong_keys_and_missing_files_come_together(plane: Plane) -> None:
    answer = await submit(
        plane,
        {
            "trainer.lrr": 1,
            "target.path": "/nowhere/target",
            "data.prompts": "/nowhere/prompts.jsonl",
            "archive.destination": "file:///etc",
        },
    )
    assert_problem(answer, 422, "invalid-configuration")
    assert fields(answer) == ["trainer.lrr", "target.path", "data.prompts", "archive.destination"]
    assert "prompts file /nowhere/prompts.jsonl does not exist" in answer.text
    assert "4 fields to correct" in answer.text
    unknown = await plane.client.post(
        "/v1/runs", json={"preset": "dmeo", "overrides": {"data.prompts": "/nowhere"}}
    )
    assert_problem(unknown, 422, "invalid-configuration")
    assert fields(unknown) == ["preset", "data.prompts"]


async def test_the_destination_is_named_beside_the_files(plane: Plane) -> None:
    given = {"archive.destination": "file:///etc", "data.prompts": "/nowhere/prompts.jsonl"}
    answer = await submit(plane, given)
    assert_problem(answer, 422, "invalid-configuration")
    assert fields(answer) == ["archive.destination", "data.prompts"]
    alone = await submit(plane, {"archive.destination": "file:///etc"})
    assert_problem(alone, 403, "forbidden-destination")


async def test_a_run_that_could_not_be_evaluated_is_refused(plane: Plane) -> None:
    answer = await submit(plane, {"data.num_prompts": 1})
    assert_problem(answer, 422, "invalid-data")
    assert fields(answer) == ["data.prompts", "stages"]
    trained = {"data.num_prompts": 1, "stages": ["generate", "tokenise", "train"]}
    assert (await submit(plane, trained)).status_code == 202


@pytest.mark.usefixtures("no_credentials")
async def test_an_object_store_without_credentials_is_refused_at_once(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await plane.start_run()
    await save_checkpoint(plane, run, 10)
    url, body = f"/v1/runs/{run['id']}/exports", {"destination": "s3://bucket/x"}
    archived = {"archive.destination": "s3://bucket/x"}
    for answer in (await plane.client.post(url, json=body), await submit(plane, archived)):
        assert_problem(answer, 400, "bad-request")
        assert "no credentials for S3: set AWS_ACCESS_KEY_ID" in answer.text
        assert fields(answer) == ["destination"]
    assert (await plane.client.get(url)).json()["items"] == []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert (await plane.client.post(url, json=body)).status_code == 202
    assert (await submit(plane, archived)).status_code == 202
