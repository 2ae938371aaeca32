"""Exports against both kinds of store: content, conflicts, damage, cuts, cancellation."""

import asyncio
import json
import threading
from dataclasses import replace

import pytest

from services.files import sha256_bytes
from services.object_stores import LocalStore, open_store
from shared.errors import UnreachableError
from shared.manifest import MANIFEST_NAME, parse_manifest
from tests.helpers.damage import flip_bit
from tests.helpers.run_folders import IDENTITY, files_below, make_checkpoint, make_run
from tests.helpers.small_disks import mounted_small_disk, resize
from workers.archiver import transfer as transfer_module
from workers.archiver.export_job import ExportOrder, ExportStatus, run_order
from workers.archiver.transfer import Tally

SECRET = b"very-secret-token"


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "run")


def order_for(url, **job):
    return ExportOrder.from_job({"id": "export-1", "destination": url, **job})


async def export(folder, url, *, secrets=(), identity=IDENTITY, **job):
    """Run an export or a verification to its end; its status, with the states it went through."""
    states = []
    status = ExportStatus(lambda status: states.append(status.state), Tally())
    await run_order(order_for(url, **job), open_store(url), folder, identity, status, secrets)
    status.seen = states
    return status


async def content_of(url):
    async with open_store(url) as store:
        keys = [info.key async for info in store.objects()]
        return {key: await store.read_bytes(key) for key in keys}


async def put(url, key, data):
    async with open_store(url) as store:
        await store.put_bytes(key, data)


async def test_an_export_is_whole_verified_and_repeatable(folder, store_url):
    first = await export(folder, store_url, include=["metadata", "logs", "drafter", "completions"])
    assert first.tally.problems == []
    assert first.seen == ["running", "verifying", "completed"]
    assert first.tally.files_done == first.tally.files_total == 9
    assert first.tally.bytes_done == first.tally.bytes_total

    there = await content_of(store_url)
    data = there.pop(MANIFEST_NAME)
    manifest = parse_manifest(data, source="test")
    assert sha256_bytes(data) == first.manifest_sha256
    assert manifest.checkpoint_step == 20
    assert manifest.config_sha256 == IDENTITY.config_sha256
    assert {f.path: (f.num_bytes, f.sha256) for f in manifest.files} == {
        key: (len(content), sha256_bytes(content)) for key, content in there.items()
    }
    assert there["drafter/config.json"] == b'{"step": 20}'
    here = files_below(folder.root)
    assert all(here[key] == there[key] for key in there if not key.startswith("drafter/"))

    again = await export(folder, store_url, include=["metadata", "logs", "drafter", "completions"])
    assert again.state == "completed"
    assert (again.tally.files_sent, again.tally.conflicts) == (0, [])
    assert again.tally.bytes_done == again.tally.bytes_total
    verified = await export(
        folder, store_url, verify_only=True, manifest_sha256=again.manifest_sha256
    )
    assert verified.seen[-1] == "completed"
    assert verified.tally.files_done == 9


async def test_files_of_others_are_kept_and_ours_lies_beside(folder, store_url):
    await put(store_url, "run.json", b"theirs")
    for text in ("first", "second"):
        folder.run_json.write_text(text)
        beside = f"run.json.dflash-mesh-{sha256_bytes(text.encode())[:8]}"
        conflict = f"run.json: another file was there; ours is {beside}"
        status = await export(folder, store_url, include=["metadata"])
        assert (status.state, status.tally.conflicts) == ("completed", [conflict])
        there = await content_of(store_url)
        assert there["run.json"] == b"theirs"
        # One copy of ours: an older one is taken away.
        copies = {key: data for key, data in there.items() if key.startswith("run.json.")}
        assert copies == {beside: text.encode()}
    verified = await export(
        folder, store_url, verify_only=True, manifest_sha256=status.manifest_sha256
    )
    assert (verified.state, verified.tally.conflicts) == ("completed", [conflict])
    async with open_store(store_url) as store:
        await store.delete("run.json")
    healed = await export(folder, store_url, include=["metadata"])
    assert (healed.state, healed.tally.conflicts) == ("completed", [])
    there = await content_of(store_url)
    assert there["run.json"] == b"second"
    assert beside not in there


async def test_a_foreign_file_in_the_drafter_s_folder_fails_the_export(folder, store_url):
    await put(store_url, "drafter/config.json", b"broken")
    ours = (folder.checkpoint(20).drafter / "config.json").read_bytes()
    beside = f"drafter/config.json.dflash-mesh-{sha256_bytes(ours)[:8]}"
    for _ in range(2):
        status = await export(folder, store_url)
        assert (status.state, status.manifest_sha256) == ("failed", None)
        [problem] = status.tally.problems
        assert problem.startswith(
            f"drafter/config.json: another file was there; ours is {beside}. The drafter's folder"
        )
        assert "choose an empty folder" in problem
        there = await content_of(store_url)
        assert (there["drafter/config.json"], there[beside]) == (b"broken", ours)
        assert MANIFEST_NAME not in there
    async with open_store(store_url) as store:
        await store.delete("drafter/config.json")
    healed = await export(folder, store_url)
    assert (healed.state, healed.tally.problems, healed.tally.conflicts) == ("completed", [], [])
    there = await content_of(store_url)
    assert sorted(key for key in there if key.startswith("drafter/")) == [
        "drafter/config.json",
        "drafter/model.safetensors",
    ]


async def test_a_foreign_manifest_is_refused_before_anything_is_sent(folder, store_url):
    await put(store_url, MANIFEST_NAME, b"not a manifest of ours")
    status = await export(folder, store_url)
    assert status.state == "failed"
    [problem] = status.tally.problems
    assert f"{MANIFEST_NAME} at " in problem and "choose an empty folder" in problem
    assert await content_of(store_url) == {MANIFEST_NAME: b"not a manifest of ours"}


async def test_a_later_export_to_the_same_place_supersedes_the_earlier(folder, store_url):
    first = await export(folder, store_url)
    make_checkpoint(folder, 40)
    second = await export(folder, store_url, id="export-2")
    assert (second.state, second.tally.conflicts) == ("completed", [])
    manifest = parse_manifest((await content_of(store_url))[MANIFEST_NAME], source="t")
    assert manifest.supersedes is not None
    assert manifest.supersedes.manifest_sha256 == first.manifest_sha256
    assert manifest.supersedes.export_id == "export-1"

    earlier = await export(
        folder, store_url, verify_only=True, manifest_sha256=first.manifest_sha256
    )
    assert (earlier.state, earlier.tally.files_done) == ("superseded", 0)
    assert earlier.tally.problems[0].startswith("superseded by export export-2 of run run-1")
    assert earlier.manifest_sha256 == first.manifest_sha256
    later = await export(
        folder, store_url, verify_only=True, manifest_sha256=second.manifest_sha256
    )
    assert (later.state, later.tally.files_done) == ("completed", len(manifest.files))


@pytest.mark.parametrize("part", ["drafter", "checkpoints"])
async def test_checkpoints_that_are_wanted_and_gone_fail_the_export(folder, store_url, part):
    for step in (10, 20):
        folder.checkpoint(step).complete_marker.unlink()
    status = await export(folder, store_url, include=["metadata", part])
    assert status.state == "failed"
    assert f"no complete checkpoint to export the {part} from" in status.tally.problems[0]
    assert await content_of(store_url) == {}
    without = await export(folder, store_url, include=["metadata", "logs"])
    assert without.state == "completed"


async def test_a_newer_state_of_the_run_replaces_its_own_older_one(folder, store_url):
    await export(folder, store_url, include=["metadata", "drafter"])
    with folder.metrics_jsonl.open("a") as file:
        file.write('{"step": 3}\n')
    (folder.checkpoint(20).drafter / "extra.json").write_text("{}")
    make_checkpoint(folder, 40)
    status = await export(folder, store_url, include=["metadata", "drafter"])
    assert (status.state, status.tally.conflicts) == ("completed", [])
    there = await content_of(store_url)
    assert there["metrics.jsonl"] == folder.metrics_jsonl.read_bytes()
    assert there["drafter/config.json"] == b'{"step": 40}'
    assert parse_manifest(there[MANIFEST_NAME], source="t").checkpoint_step == 40


async def test_parts_exported_earlier_stay_in_the_manifest(folder, store_url):
    await export(folder, store_url, include=["dataset"])
    await export(folder, store_url, include=["logs"])
    manifest = parse_manifest((await content_of(store_url))[MANIFEST_NAME], source="t")
    assert {file.part for file in manifest.files} == {"dataset", "logs"}


async def test_another_run_does_not_mix_in(folder, store_url):
    await export(folder, store_url, include=["logs"])
    before = await content_of(store_url)
    other = replace(IDENTITY, run_id="run-2")
    status = await export(folder, store_url, include=["logs"], identity=other)
    assert status.state == "failed"
    assert "holds the export of run run-1" in status.tally.problems[0]
    assert await content_of(store_url) == before


async def test_a_flipped_bit_a_cut_and_a_loss_are_found(folder, store_url):
    done = await export(folder, store_url)
    there = await content_of(store_url)
    model = bytearray(there["drafter/model.safetensors"])
    model[7] ^= 1
    await put(store_url, "drafter/model.safetensors", bytes(model))
    await put(store_url, "metrics.jsonl", there["metrics.jsonl"][:-1])
    async with open_store(store_url) as store:
        await store.delete("run.json")
    status = await export(folder, store_url, verify_only=True, manifest_sha256=done.manifest_sha256)
    assert status.state == "failed"
    assert [problem.split(":")[0] for problem in status.tally.problems] == [
        "drafter/model.safetensors",
        "metrics.jsonl",
        "run.json",
    ]
    assert status.manifest_sha256 == done.manifest_sha256
    healed = await export(folder, store_url)
    # What is damaged is not known to be ours any more: it stays, ours comes beside it.
    assert healed.state == "failed"
    assert [text.split(":")[0] for text in healed.tally.problems] == ["drafter/model.safetensors"]
    assert [text.split(":")[0] for text in healed.tally.conflicts] == ["metrics.jsonl"]


async def test_damage_on_the_way_fails_the_export_before_a_manifest(folder, tmp_path, monkeypatch):
    put_file = LocalStore.put_file

    async def damaging(self, path, key, **more):
        await put_file(self, path, key, **more)
        if key == "run.json":
            (self.root / key).write_bytes(b"#" * path.stat().st_size)

    monkeypatch.setattr(LocalStore, "put_file", damaging)
    url = f"file://{tmp_path / 'store'}"
    status = await export(folder, url, include=["metadata"])
    assert status.state == "failed"
    assert status.tally.problems == ["run.json: other content than was sent (SHA-256 differs)"]
    assert MANIFEST_NAME not in await content_of(url)


async def test_an_export_of_a_run_that_writes_on_is_consistent(folder, store_url):
    stop = threading.Event()

    def write_on():
        step = 2
        while not stop.is_set():
            step += 1
            with folder.metrics_jsonl.open("a") as file:
                file.write(json.dumps({"step": step, "text": "x" * 300}))
                file.flush()
                file.write("\n")
            with folder.log("batcher", 0).open("a") as file:
                file.write(f"step {step}\n")

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        statuses = [await export(folder, store_url) for _ in range(3)]
    finally:
        stop.set()
        writer.join()
    assert [status.state for status in statuses] == ["completed"] * 3
    assert [status.tally.conflicts for status in statuses] == [[], [], []]
    there = await content_of(store_url)
    lines = there["metrics.jsonl"].decode().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert folder.metrics_jsonl.read_bytes().startswith(there["metrics.jsonl"])


async def test_a_cut_export_goes_on_and_owns_what_it_wrote(folder, store_url, monkeypatch):
    place = transfer_module.Transfer._place
    placed = []

    async def failing(self, file, there):
        if len(placed) >= 6:
            raise UnreachableError("the store went away")
        placed.append(file.key)
        return await place(self, file, there)

    with monkeypatch.context() as patch:
        patch.setattr(transfer_module.Transfer, "_place", failing)
        status = await export(folder, store_url)
    assert status.state == "failed"
    assert status.tally.problems == ["the store went away"]
    assert "manifest.partial.json" in await content_of(store_url)

    folder.run_json.write_text('{"state": "completed"}')  # it had been sent in its earlier state
    again = await export(folder, store_url)
    assert (again.state, again.tally.conflicts) == ("completed", [])
    assert again.tally.files_sent < again.tally.files_total
    there = await content_of(store_url)
    assert there["run.json"] == b'{"state": "completed"}'
    assert "manifest.partial.json" not in there


async def test_a_cancelled_export_stops_and_leaves_no_picture(folder, tmp_path, monkeypatch):
    started = asyncio.Event()

    async def endless(self, path, key, **more):
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(LocalStore, "put_file", endless)
    url = f"file://{tmp_path / 'store'}"
    job = asyncio.create_task(export(folder, url))
    await started.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert list((folder.root / ".staging").iterdir()) == []
    assert set(await content_of(url)) == {"manifest.partial.json"}


async def test_no_secret_leaves(folder, store_url):
    folder.log("batcher", 0).write_bytes(b"uses " + SECRET + b"\n")
    status = await export(folder, store_url, secrets=[SECRET])
    assert status.state == "completed"
    assert all(SECRET not in data for data in (await content_of(store_url)).values())

    folder.completions_batch(0).write_bytes(b'{"text": "' + SECRET + b'"}\n')
    status = await export(folder, store_url, secrets=[SECRET], include=["completions"])
    assert status.state == "failed"
    assert "completions/batch_000000.jsonl holds the value of a secret" in status.tally.problems[0]
    assert SECRET.decode() not in status.tally.problems[0]


@pytest.mark.parametrize(
    "name", ["dataset/shard_00001.arrow", "checkpoints/step_00000020/drafter/model.safetensors"]
)
async def test_a_file_that_rotted_in_the_run_folder_fails_the_export(folder, tmp_path, name):
    flip_bit(folder.root / name)
    status = await export(folder, f"file://{tmp_path / 'out'}")
    assert status.state == "failed"
    assert f"{name} is damaged" in status.tally.problems[0]
    assert not (tmp_path / "out" / "manifest.json").exists()


async def test_a_full_destination_fails_with_its_name_and_can_go_on(folder, tmp_path):
    with mounted_small_disk(tmp_path / "disk", 32 * 1024) as disk:
        (folder.quarantine / "empty.jsonl").write_bytes(b"x\n" * 50_000)
        status = await export(folder, f"file://{disk}")
        assert status.state == "failed"
        assert "no space left" in status.tally.problems[0]
        assert MANIFEST_NAME not in files_below(disk)
        resize(disk, 2**20)
        status = await export(folder, f"file://{disk}")
        assert (status.state, status.tally.conflicts) == ("completed", [])


async def test_a_missing_checkpoint_fails_with_the_ones_there_are(folder, store_url):
    status = await export(folder, store_url, checkpoints=[30])
    assert status.state == "failed"
    assert "complete ones: 10, 20" in status.tally.problems[0]
    assert await content_of(store_url) == {}


async def test_verifying_a_place_without_a_manifest_says_so(folder, store_url):
    status = await export(folder, store_url, verify_only=True)
    assert status.state == "failed"
    assert "there is no manifest.json" in status.tally.problems[0]
