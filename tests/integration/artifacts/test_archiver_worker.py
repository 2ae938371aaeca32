"""The role as a worker: jobs with progress and drain, the continuous archive, outages."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from services.files import sha256_file
from services.links import LinkLimits, dial
from services.object_stores import LocalStore, open_store
from shared.api.events import ExportProgress
from shared.errors import ReadOnlyError, UnreachableError
from shared.manifest import parse_manifest
from shared.messages import FileClosed
from shared.states import Role, WorkerState
from tests.helpers.damage import flip_bit
from tests.helpers.mesh_contexts import Workplace, tiny_config
from tests.helpers.run_folders import IDENTITY, files_below, make_checkpoint, make_run
from workers.archiver import continuous
from workers.archiver import worker as archiver_worker
from workers.archiver.continuous import ContinuousArchive


@pytest.fixture(autouse=True)
def _ordinary_priority(monkeypatch):
    """The worker lowers its priority, which a test process could not raise again."""
    monkeypatch.setattr(archiver_worker.os, "nice", lambda by: by)


def progress(context):
    return [event for event in context.pending_events(10_000) if isinstance(event, ExportProgress)]


@asynccontextmanager
async def running(context):
    """The role's main; drained at the end, so that an error in it surfaces."""
    task = asyncio.create_task(archiver_worker.main(context))
    try:
        yield task
    except BaseException:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    context.drain()
    async with asyncio.timeout(20):
        await task


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for is only to be looked at
            await asyncio.sleep(0.02)


def job_context(root, url, **job):
    context = Workplace(root, tiny_config()).context(Role.ARCHIVER, 1)
    context.job = {"id": "export-7", "destination": url, "verify_only": False, **job}
    return context


async def test_an_export_job_reports_and_waits_to_be_drained(tmp_path):
    folder = make_run(tmp_path / "run")
    context = job_context(folder.root, f"file://{tmp_path / 'out'}", checkpoints="all")
    async with running(context) as task:
        await until(lambda: context.state is WorkerState.FINISHED)
        assert not task.done()
    reports = progress(context)
    assert [reports[0].state, reports[-1].state] == ["running", "completed"]
    assert reports[-1].files_done == reports[-1].files_total > 0
    out = files_below(tmp_path / "out")
    manifest = parse_manifest(out["manifest.json"], source="test")
    assert manifest.export_id == "export-7"
    assert {"hardware.json", "PROGRESS.md", "checkpoints/step_00000010/COMPLETE"} <= set(out)


async def test_a_drained_job_ends_without_a_verdict(tmp_path, monkeypatch):
    started = asyncio.Event()

    async def endless(self, path, key, **more):
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(LocalStore, "put_file", endless)
    folder = make_run(tmp_path / "run")
    context = job_context(folder.root, f"file://{tmp_path / 'out'}")
    async with running(context):
        await started.wait()
    assert progress(context)[-1].state == "running"


async def test_the_run_is_archived_while_it_goes_on(tmp_path, store_url, monkeypatch):
    monkeypatch.setattr(continuous, "SCAN_S", 3600.0)
    folder = make_run(tmp_path / "run")
    config = tiny_config({"archive.destination": store_url})
    workplace = Workplace(folder.root, config)
    context = workplace.context(Role.ARCHIVER)
    async with running(context):
        await until(lambda: context.metrics.get("archive_files", 0) > 0)
        async with open_store(store_url) as store:
            assert await store.head("completions/batch_000001.jsonl") is not None
            assert await store.head("checkpoints/step_00000010/COMPLETE") is not None

            # A checkpoint that is announced is there without waiting for the next scan.
            root = make_checkpoint(folder, 40)
            closed = root / "COMPLETE"
            trainer = workplace.context(Role.DRAFTER_TRAINER)
            channel = await dial(
                "files",
                context.endpoints["files"],
                trainer.identity,
                limits=LinkLimits(4, 2**20),
                security=trainer.security,
                plane="zmq",
            )
            async with channel:
                num_bytes, sha256 = sha256_file(closed)
                path = closed.relative_to(folder.root).as_posix()
                await channel.send(FileClosed(path, num_bytes, sha256, "checkpoint"))
                before = context.metrics["archive_files"]
                await until(lambda: context.metrics["archive_files"] > before)
            assert await store.read_bytes("drafter/config.json") == b'{"step": 40}'

        with folder.metrics_jsonl.open("a") as file:
            file.write('{"step": 3}\n')

    async with open_store(store_url) as store:
        assert await store.read_bytes("metrics.jsonl") == folder.metrics_jsonl.read_bytes()
        assert await store.head("completions/batch_000002.jsonl") is not None
        manifest = parse_manifest(await store.read_bytes("manifest.json"), source="test")
        assert manifest.checkpoint_step == 40
        for file in manifest.files:
            assert await store.digest(file.key) == (file.num_bytes, file.sha256)
    assert context.metrics["archive_backlog_bytes"] == 0


async def test_without_a_destination_the_documents_are_kept_true(tmp_path):
    folder = make_run(tmp_path / "run")
    context = Workplace(folder.root, tiny_config()).context(Role.ARCHIVER)
    async with running(context):
        await until(lambda: folder.manifest_json.exists())
        make_checkpoint(folder, 40)
    manifest = parse_manifest(folder.manifest_json.read_bytes(), source="test")
    assert manifest.checkpoint_step == 40
    for file in manifest.files:
        assert sha256_file(folder.root / file.path) == (file.num_bytes, file.sha256)
    assert "Checkpoint at step 40" in folder.progress_md.read_text()
    assert folder.hardware_json.exists()


async def test_an_outage_only_makes_the_queue_longer(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run")
    archive = ContinuousArchive(folder, IDENTITY, f"file://{tmp_path / 'store'}")

    async def away(self, path, key, **more):
        raise UnreachableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_file", away)
        await archive.run_pass()
        await archive.run_pass()
    assert archive.state.problem == "the store is away"
    assert archive.state.backlog_bytes > 0
    assert "Held up: the store is away" in folder.progress_md.read_text()

    await archive.run_pass()
    assert (archive.state.problem, archive.state.backlog_bytes) == (None, 0)


async def test_a_foreign_file_in_the_archived_drafter_is_a_standing_problem(tmp_path):
    folder, store = make_run(tmp_path / "run"), tmp_path / "store"
    (store / "drafter").mkdir(parents=True)
    (store / "drafter" / "config.json").write_text("broken")
    archive = ContinuousArchive(folder, IDENTITY, f"file://{store}")
    for _ in range(2):  # also when a pass has nothing to send
        await archive.run_pass(everything=True)
        assert archive.state.problem.startswith("drafter/config.json: another file was there")
    # The rest of the archive goes on.
    manifest = parse_manifest((store / "manifest.json").read_bytes(), source="test")
    assert "checkpoints/step_00000020/COMPLETE" in {file.path for file in manifest.files}
    (store / "drafter" / "config.json").unlink()
    make_checkpoint(folder, 40)
    await archive.run_pass()
    assert archive.state.problem is None
    assert (store / "drafter" / "config.json").read_text() == '{"step": 40}'


async def test_damaged_files_are_left_out_and_a_sound_copy_is_kept(tmp_path):
    folder = make_run(tmp_path / "run")
    store = tmp_path / "store"
    await ContinuousArchive(folder, IDENTITY, f"file://{store}").run_pass()
    sound = (store / "dataset" / "shard_00000.arrow").read_bytes()

    flip_bit(folder.shard(0))
    make_checkpoint(folder, 40)
    flip_bit(folder.checkpoint(40).drafter / "model.safetensors")
    make_checkpoint(folder, 50)
    again = ContinuousArchive(folder, IDENTITY, f"file://{store}")
    await again.run_pass()
    assert (store / "dataset" / "shard_00000.arrow").read_bytes() == sound
    assert not (store / "checkpoints" / "step_00000040").exists()
    assert (store / "checkpoints" / "step_00000050" / "COMPLETE").exists()
    assert again.state.problem is not None and "step_00000040" in again.state.problem


async def test_a_restarted_archiver_sends_nothing_twice(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run")
    url = f"file://{tmp_path / 'store'}"
    await ContinuousArchive(folder, IDENTITY, url).run_pass(everything=True)
    sent, read = [], []
    put_file, digest = LocalStore.put_file, LocalStore.digest

    async def counted(self, path, key, **more):
        sent.append(key)
        await put_file(self, path, key, **more)

    async def read_back(self, key):
        read.append(key)
        return await digest(self, key)

    monkeypatch.setattr(LocalStore, "put_file", counted)
    monkeypatch.setattr(LocalStore, "digest", read_back)
    again = ContinuousArchive(folder, IDENTITY, url)
    await again.run_pass()
    assert set(sent) <= {"PROGRESS.md"}
    assert not any(key.startswith(("checkpoints", "dataset/shard", "drafter")) for key in read)
    make_checkpoint(folder, 40)
    await again.run_pass()
    assert {key for key in sent if "step_" in key} == {
        f"checkpoints/step_00000040/{name}"
        for name in (
            "drafter/config.json",
            "drafter/model.safetensors",
            "trainer_state.json",
            "trainer_state.safetensors",
            "COMPLETE",
        )
    }


async def test_an_export_to_the_archive_keeps_what_is_archived(tmp_path):
    folder = make_run(tmp_path / "run")
    url = f"file://{tmp_path / 'store'}"
    archive = ContinuousArchive(folder, IDENTITY, url)
    await archive.run_pass(everything=True)
    context = job_context(folder.root, url, include=["logs"])
    context.run_id = IDENTITY.run_id
    async with running(context):
        await until(lambda: context.state is WorkerState.FINISHED)
    assert progress(context)[-1].state == "completed"
    manifest = parse_manifest((tmp_path / "store" / "manifest.json").read_bytes(), source="test")
    assert "checkpoints/step_00000010/COMPLETE" in {file.path for file in manifest.files}


async def test_a_disk_that_takes_no_documents_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    """Without a destination the archiver has nothing that a run could fail for."""

    def refuse(*_):
        raise ReadOnlyError("cannot use PROGRESS.md: the file system is read-only")

    folder = make_run(tmp_path / "run")
    context = Workplace(folder.root, tiny_config()).context(Role.ARCHIVER)
    with monkeypatch.context() as patched:
        patched.setattr(archiver_worker, "record_hardware", refuse)
        patched.setattr(continuous, "write_progress", refuse)
        patched.setattr(continuous, "SCAN_S", 0.01)
        async with running(context):
            await until(lambda: "up to date" in caplog.text)
    assert context.state is not WorkerState.FAILED
    told = [r for r in caplog.records if "manifest and PROGRESS.md" in r.message]
    assert len(told) == 1
