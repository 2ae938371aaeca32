"""Inventories: each state of an object, and what each side knows."""

import shutil

import pytest

from services.inventory import RunKnowledge, take_inventory
from services.object_stores import LocalStore
from tests.helpers.run_folders import IDENTITY, make_run
from workers.archiver.export_job import ExportOrder, ExportStatus, run_order
from workers.archiver.transfer import Tally


@pytest.fixture
async def exported(tmp_path):
    """A run and a store with its export below a/b."""
    folder = make_run(tmp_path / "run")
    order = ExportOrder.from_job({"id": "export-1", "destination": "unused"})
    status = ExportStatus(lambda status: None, Tally())
    store = LocalStore(tmp_path / "store" / "a" / "b")
    await run_order(order, store, folder, IDENTITY, status)
    assert status.state == "completed", status.tally.problems
    return folder, tmp_path / "store"


async def inventory(root, depth=2, runs=None):
    return await take_inventory(LocalStore(root), depth=depth, runs=runs)


def states(view):
    return {finding.key: finding.state for finding in view.findings}


async def test_a_whole_export_is_verified(exported):
    _, root = exported
    view = await inventory(root)
    assert states(view) == {}
    (row,) = [item for item in view.items if item.prefix == "a/b"]
    assert row.verified == row.objects == 14
    assert row.missing == row.extra == row.mismatched == row.stale == 0
    total = await inventory(root, depth=0)
    assert [item.prefix for item in total.items] == [""]
    assert total.items[0].bytes == sum(p.stat().st_size for p in root.rglob("*") if p.is_file())


async def test_every_deviation_has_its_name(exported):
    _, root = exported
    place = root / "a" / "b"
    (place / "run.json").unlink()
    (place / "metrics.jsonl").write_text("cut")
    (place / "left.jsonl.dflash-mesh-01234567").write_text("x")
    (place / "surprise.bin").write_bytes(b"x")
    (root / "elsewhere.bin").write_bytes(b"x")
    view = await inventory(root)
    assert states(view) == {
        "a/b/run.json": "missing",
        "a/b/metrics.jsonl": "mismatched",
        "a/b/left.jsonl.dflash-mesh-01234567": "stale",
        "a/b/surprise.bin": "extra",
        "elsewhere.bin": "extra",
    }
    for row in view.items:
        found = row.verified + row.missing + row.extra + row.mismatched + row.stale
        assert found == row.objects + row.missing


async def test_an_unfinished_export_is_stale(exported):
    _, root = exported
    place = root / "a" / "b"
    (place / "manifest.json").rename(place / "elsewhere")
    (place / "elsewhere").unlink()
    (place / "manifest.partial.json").write_text('{"run_id": "run-1", "written": []}')
    view = await inventory(root)
    assert set(states(view).values()) == {"stale"}
    assert "not finished" in view.findings[0].reason
    assert sum(row.stale_bytes for row in view.items) == sum(row.bytes for row in view.items)


async def test_data_of_a_bad_run_is_stale_with_the_reason(exported):
    _, root = exported
    runs = {"run-1": RunKnowledge(bad_because="87 % of the samples were empty")}
    view = await inventory(root, runs=runs)
    assert set(states(view).values()) == {"stale"}
    assert view.findings[0].reason == "87 % of the samples were empty"


async def test_the_ledger_is_compared(exported):
    _, root = exported
    ledger = {"dataset/shard_00000.arrow": "0" * 64, "dataset/shard_00009.arrow": "1" * 64}
    view = await inventory(root, runs={"run-1": RunKnowledge(ledger=ledger)})
    assert states(view) == {
        "a/b/dataset/shard_00000.arrow": "mismatched",
        "a/b/dataset/shard_00009.arrow": "missing",
    }


async def test_files_that_exist_only_here_are_counted(exported):
    folder, root = exported
    runs = {"run-1": RunKnowledge(folder=folder)}
    (before,) = (await inventory(root, runs=runs)).runs
    (folder.dataset / "shard_00002.arrow").write_bytes(b"x" * 77)
    (after,) = (await inventory(root, runs=runs)).runs
    assert after.local_only_files == before.local_only_files + 1
    assert after.local_only_bytes == before.local_only_bytes + 77
    assert after.checkpoint_step == 20


async def test_two_runs_below_one_place_do_not_mix(exported):
    _, root = exported
    shutil.copytree(root / "a" / "b", root / "a" / "c")
    (root / "a" / "c" / "run.json").unlink()
    view = await inventory(root)
    assert states(view) == {"a/c/run.json": "missing"}
    assert [run.prefix for run in view.runs] == ["a/b", "a/c"]


async def test_a_damaged_manifest_is_named(exported):
    _, root = exported
    (root / "a" / "b" / "manifest.json").write_text("{}")
    view = await inventory(root)
    assert states(view)["a/b/manifest.json"] == "mismatched"
    assert view.runs == []


async def test_an_empty_place(tmp_path):
    view = await inventory(tmp_path / "nothing")
    assert view.items == []
