"""Pictures of a run that goes on: whole lines, redaction, vanishing checkpoints, dead jobs."""

import json
import shutil

import pytest

from services.files import sha256_bytes
from shared.api.exports import DEFAULT_PARTS, PART_ORDER
from shared.errors import DiskFullError, UserError
from tests.helpers.run_folders import make_checkpoint, make_run
from tests.helpers.small_disks import fill, mounted_small_disk
from workers.archiver import picture as picture_module
from workers.archiver.collect import RunFile
from workers.archiver.picture import take_picture
from workers.archiver.staging import FileGone, open_staging

SECRET = b"very-secret-token"


def by_key(picture):
    return {file.key: file for file in picture.files}


def test_sums_and_sizes_are_those_of_the_picture(tmp_path):
    folder = make_run(tmp_path)
    with open_staging(folder, "job") as staging:
        picture = take_picture(folder, staging, PART_ORDER, "all")
        for file in picture.files:
            data = file.path.read_bytes()
            assert (len(data), sha256_bytes(data)) == (file.num_bytes, file.sha256)
        assert picture.checkpoint_step == 20
    assert list((folder.root / ".staging").iterdir()) == []


def test_growing_files_are_cut_at_a_whole_line(tmp_path):
    folder = make_run(tmp_path)
    with folder.metrics_jsonl.open("a") as file:
        file.write('{"step": 3, "lo')
    with open_staging(folder, "job") as staging:
        files = by_key(take_picture(folder, staging, ["metadata"], "latest"))
        with folder.metrics_jsonl.open("a") as file:
            file.write('ss": 2.0}\n')
        lines = files["metrics.jsonl"].path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_secrets_are_redacted_in_logs_and_metadata(tmp_path):
    folder = make_run(tmp_path)
    folder.log("batcher", 0).write_bytes(b"token " + SECRET + b" used\n")
    with open_staging(folder, "job", [SECRET]) as staging:
        files = by_key(take_picture(folder, staging, ["metadata", "logs"], "latest"))
        assert files["logs/batcher-0.log"].path.read_bytes() == b"token [redacted] used\n"
    assert SECRET in folder.log("batcher", 0).read_bytes()


def test_a_secret_in_a_settled_text_stops_the_export(tmp_path):
    folder = make_run(tmp_path)
    folder.completions_batch(0).write_bytes(b'{"text": "' + SECRET + b'"}\n')
    with (
        open_staging(folder, "job", [SECRET]) as staging,
        pytest.raises(UserError, match=r"completions/batch_000000\.jsonl holds") as caught,
    ):
        take_picture(folder, staging, ["completions"], "latest")
    assert SECRET.decode() not in str(caught.value)


def test_a_checkpoint_removed_meanwhile_is_replaced_by_the_newest_there(tmp_path, monkeypatch):
    folder = make_run(tmp_path)
    collect = picture_module.collect

    def collect_then_lose(*arguments):
        found = collect(*arguments)
        if folder.checkpoint(20).root.exists():
            make_checkpoint(folder, 40)
            folder.checkpoint(20).complete_marker.unlink()
            shutil.rmtree(folder.checkpoint(20).root)
        return found

    monkeypatch.setattr(picture_module, "collect", collect_then_lose)
    with open_staging(folder, "job") as staging:
        picture = take_picture(folder, staging, DEFAULT_PARTS, "latest")
        assert picture.checkpoint_step == 40
        assert not any("step_00000020" in key for key in by_key(picture))


def test_a_checkpoint_removed_after_the_picture_is_still_in_it(tmp_path):
    folder = make_run(tmp_path)
    with open_staging(folder, "job") as staging:
        picture = take_picture(folder, staging, ["checkpoints"], "latest")
        shutil.rmtree(folder.checkpoint(20).root)
        assert all(len(file.path.read_bytes()) == file.num_bytes for file in picture.files)


def test_a_shard_that_the_index_does_not_know_yet_waits(tmp_path):
    folder = make_run(tmp_path)
    folder.shard(2).write_bytes(b"ARROW1 sealed, not recorded yet")
    with open_staging(folder, "job") as staging:
        keys = by_key(take_picture(folder, staging, ["dataset"], "latest"))
    assert set(keys) == {
        "dataset/dataset.json",
        "dataset/shard_00000.arrow",
        "dataset/shard_00001.arrow",
    }


def test_what_a_killed_job_left_is_removed_and_a_living_one_is_not(tmp_path):
    folder = make_run(tmp_path)
    dead = folder.root / ".staging" / "dead"
    dead.mkdir(parents=True)
    (dead / "lock").touch()
    (dead / "big").write_bytes(b"x")
    with open_staging(folder, "one") as one:
        files = take_picture(folder, one, ["metadata"], "latest").files
        with open_staging(folder, "two"):
            assert not dead.exists()
            assert all(file.path.exists() for file in files)


@pytest.mark.parametrize("settled", [True, False])
def test_a_link_that_took_a_file_s_place_is_not_followed(tmp_path, settled):
    folder = make_run(tmp_path / "run")
    (tmp_path / "outside.log").write_text("not of this run")
    folder.log("batcher", 0).unlink()
    folder.log("batcher", 0).symlink_to(tmp_path / "outside.log")
    file = RunFile(folder.log("batcher", 0), "logs/batcher-0.log", "logs", settled)
    with open_staging(folder, "job") as staging, pytest.raises(FileGone):
        staging.take(file)


def test_a_full_disk_stops_the_picture_with_its_name(tmp_path):
    with mounted_small_disk(tmp_path / "disk", 512 * 1024) as disk:
        folder = make_run(disk / "run")
        folder.log("batcher", 0).write_bytes(b"a line\n" * 20_000)
        fill(disk, leave_bytes=60_000)
        with open_staging(folder, "job") as staging, pytest.raises(DiskFullError):
            take_picture(folder, staging, ["logs"], "latest")
        assert list((folder.root / ".staging").iterdir()) == []
