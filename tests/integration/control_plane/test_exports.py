"""Exports and what lies at their destinations: where they may go, the archive, the inventory."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from control_plane.store import exports, ledger
from shared.api.events import CheckpointSaved, ExportProgress
from shared.manifest import Manifest, ManifestFile
from tests.helpers.run_folders import make_checkpoint
from tests.integration.control_plane.conftest import Plane
from tests.integration.control_plane.test_http import assert_problem


async def complete_export(
    plane: Plane, run: dict[str, Any], folder: Path, files: dict[str, bytes]
) -> str:
    """An export as a finished archiver leaves it."""
    made = await plane.client.post(
        f"/v1/runs/{run['id']}/exports",
        json={"destination": folder.as_uri(), "include": ["metadata"]},
    )
    assert made.status_code == 202, made.text
    listed = []
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        listed.append(ManifestFile(path=name, num_bytes=len(data), sha256=digest, part="metadata"))
    manifest = Manifest(
        run_id=run["id"],
        run_name=run["name"],
        config_sha256=run["config_sha256"],
        program_version="0",
        created_at=1000.0,
        files=listed,
    ).to_bytes()
    (folder / "manifest.json").write_bytes(manifest)
    done = ExportProgress(
        number=0,
        export_id=made.json()["id"],
        state="completed",
        files_total=len(files),
        files_done=len(files),
        bytes_total=1,
        bytes_done=1,
        manifest_sha256=hashlib.sha256(manifest).hexdigest(),
    )
    await plane.mesh.database.write(exports.record_progress, done, now=2.0)
    export_id: str = made.json()["id"]
    return export_id


async def save_checkpoint(plane: Plane, run: dict[str, Any], step: int) -> None:
    """What a trainer leaves: the folder, and its fact in the ledger."""
    path = make_checkpoint(plane.mesh.settings.folder.run(run["id"]), step)
    saved = CheckpointSaved(
        number=0, step=step, next_micro_batch_id=1, epoch=0, num_bytes=7, path=str(path)
    )
    await plane.mesh.database.write(ledger.add_checkpoint, run["id"], saved, now=1.0)


async def test_an_export_without_a_checkpoint_is_refused_when_it_needs_one(plane: Plane) -> None:
    run = await plane.start_run()
    url = f"/v1/runs/{run['id']}/exports"
    for body in (None, {"include": ["metadata", "drafter"]}, {"checkpoints": "all"}):
        answer = await plane.client.post(url, json=body)
        assert_problem(answer, 409, "conflict")
        assert "no complete checkpoint" in answer.text and "metadata, logs" in answer.text
    assert (await plane.client.get(url)).json()["items"] == []
    for nothing in ({"checkpoints": []}, {"include": []}):
        answer = await plane.client.post(url, json=nothing)
        assert_problem(answer, 422, "invalid-request")
    plain = await plane.client.post(url, json={"include": ["metadata", "logs"]})
    assert plain.status_code == 202
    await save_checkpoint(plane, run, 10)
    missing = await plane.client.post(url, json={"checkpoints": [10, 30]})
    assert_problem(missing, 404, "not-found")
    assert "step 30; it has: 10" in missing.text
    assert (await plane.client.post(url)).status_code == 202


async def test_a_run_that_does_not_train_exports_what_it_has(plane: Plane) -> None:
    run = await plane.start_run(stages=["generate", "tokenise"])
    url = f"/v1/runs/{run['id']}/exports"
    made = await plane.client.post(url)
    assert made.status_code == 202
    stored = await plane.mesh.database.read(exports.get, made.json()["id"])
    assert stored.include == ["metadata", "logs", "dataset"]
    refused = await plane.client.post(url, json={"include": ["drafter"]})
    assert_problem(refused, 409, "conflict")
    assert "does not train" in refused.text


async def test_an_export_comes_back_as_one_tar(plane: Plane, tmp_path: Path) -> None:
    run = await plane.start_run()
    files = {
        "run.json": b"{}",
        "drafter/model.safetensors": os.urandom(3_000_001),
        "logs/empty.log": b"",
        "x" * 150 + "/ü.txt": b"long and not ASCII",
    }
    export_id = await complete_export(plane, run, tmp_path / "exports" / "one", files)
    url = f"/v1/exports/{export_id}/archive"
    answer = await plane.client.get(url)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-tar"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert f'filename="demo-{run["id"]}.tar"' in answer.headers["content-disposition"]
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        found = {}
        for member in archive:
            taken = archive.extractfile(member)
            assert taken is not None and member.mtime == 1000
            found[member.name.partition("/")[2]] = taken.read()
    assert found.pop("manifest.json").startswith(b"{")
    assert found == files
    (tmp_path / "exports" / "one" / "run.json").write_bytes(b"{}longer")
    assert_problem(await plane.client.get(url), 409, "conflict")


async def test_a_file_that_changed_inside_breaks_the_stream_off(
    plane: Plane, tmp_path: Path
) -> None:
    run = await plane.start_run()
    folder = tmp_path / "exports" / "two"
    export_id = await complete_export(plane, run, folder, {"a": b"1234", "b": b"5678"})
    (folder / "a").write_bytes(b"9999")
    with pytest.raises(httpx.HTTPError):
        response = await plane.client.get(f"/v1/exports/{export_id}/archive")
        if len(response.content) < int(response.headers["content-length"]):
            raise httpx.ReadError("the stream broke off")


async def test_exports_go_only_where_they_may(plane: Plane, tmp_path: Path) -> None:
    run = await plane.start_run()
    url = f"/v1/runs/{run['id']}/exports"
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "link").symlink_to(outside)
    data = tmp_path / "data"
    kept = (data, data / "runs" / "x", data / "backups")
    for path in (outside, tmp_path / "exports" / "link", *kept):
        answer = await plane.client.post(url, json={"destination": f"file://{path}"})
        assert_problem(answer, 403, "forbidden-destination")
    for destination in (
        f"file://{tmp_path}/exports/../outside",
        "s3://key:secret@bucket/x",
        "http://example.org/x",
        "relative/folder",
        "",
        "file://host/x",
    ):
        answer = await plane.client.post(url, json={"destination": destination})
        if destination:
            assert_problem(answer, 400, "bad-request")
            assert "secret" not in answer.text
    await save_checkpoint(plane, run, 10)
    plain = await plane.client.post(url)
    assert plain.status_code == 202
    assert plain.headers["location"] == f"/v1/exports/{plain.json()['id']}"
    assert plain.json()["destination"] == (data / "exports" / run["id"]).as_uri()
    below = await plane.client.post(
        url, json={"destination": (tmp_path / "exports" / "new").as_uri(), "checkpoints": "all"}
    )
    assert below.status_code == 202
    archive = await plane.client.get(f"/v1/exports/{below.json()['id']}/archive")
    assert_problem(archive, 409, "conflict")
    verify = await plane.client.post(f"/v1/exports/{below.json()['id']}/verify")
    assert_problem(verify, 409, "conflict")
    assert (await plane.client.delete(f"/v1/exports/{below.json()['id']}")).status_code == 202
    listed = (await plane.client.get(url)).json()["items"]
    assert len(listed) >= 2


async def test_the_inventory_compares_with_manifests(plane: Plane, tmp_path: Path) -> None:
    run = await plane.start_run()
    folder = tmp_path / "exports" / "three"
    await complete_export(plane, run, folder, {"logs/a.log": b"1234", "run.json": b"{}"})
    (folder / "logs" / "a.log").unlink()
    (tmp_path / "exports" / "stray").write_text("who knows")
    params: dict[str, Any] = {"url": (tmp_path / "exports").as_uri(), "depth": 1}
    view = (await plane.client.get("/v1/inventory", params=params)).json()
    rows = {row["prefix"]: row for row in view["items"]}
    assert (rows["three"]["verified"], rows["three"]["missing"]) == (2, 1)
    assert rows[""]["extra"] == 1
    params["url"] = "file:///etc"
    refused = await plane.client.get("/v1/inventory", params=params)
    assert_problem(refused, 403, "forbidden-destination")
    params["url"] = (tmp_path / "exports" / "none").as_uri()
    assert_problem(await plane.client.get("/v1/inventory", params=params), 404, "not-found")
    assert_problem(await plane.client.get("/v1/inventory"), 422, "invalid-request")
