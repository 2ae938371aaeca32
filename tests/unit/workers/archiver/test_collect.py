"""Which files belong to an export, and in which order they leave."""

import pytest

from shared.api.exports import DEFAULT_PARTS, PART_ORDER
from shared.errors import NotFoundError
from tests.helpers.run_folders import make_checkpoint, make_run
from workers.archiver.collect import collect


def keys(found):
    return [file.key for file in found.files]


def test_default_parts_small_first_and_newest_complete_checkpoint(tmp_path):
    found = collect(make_run(tmp_path), DEFAULT_PARTS)
    assert keys(found) == [
        "metrics.jsonl",
        "run.json",
        "logs/batcher-0.log",
        "drafter/config.json",
        "drafter/model.safetensors",
        "dataset/dataset.json",
        "dataset/shard_00000.arrow",
        "dataset/shard_00001.arrow",
        "checkpoints/step_00000020/drafter/config.json",
        "checkpoints/step_00000020/drafter/model.safetensors",
        "checkpoints/step_00000020/trainer_state.json",
        "checkpoints/step_00000020/trainer_state.safetensors",
        "checkpoints/step_00000020/COMPLETE",
    ]
    assert found.checkpoint_step == 20
    assert found.notes == []


@pytest.mark.parametrize(("choice", "steps"), [("latest", [20]), ("all", [10, 20]), ([10], [10])])
def test_choice_of_checkpoints(tmp_path, choice, steps):
    found = collect(make_run(tmp_path), ["checkpoints"], choice)
    assert [checkpoint.step for checkpoint in found.checkpoints] == steps


def test_an_incomplete_or_unknown_checkpoint_is_refused_by_name(tmp_path):
    with pytest.raises(NotFoundError, match=r"of step 30, 40; complete ones: 10, 20"):
        collect(make_run(tmp_path), ["checkpoints"], [10, 30, 40])


def test_a_cut_file_makes_a_checkpoint_incomplete(tmp_path):
    folder = make_run(tmp_path)
    (folder.checkpoint(20).drafter / "model.safetensors").write_bytes(b"short")
    assert collect(folder, ["drafter"]).checkpoint_step == 10


def test_a_run_without_checkpoints_has_none_of_their_files(tmp_path):
    folder = make_run(tmp_path)
    for step in (10, 20):
        folder.checkpoint(step).complete_marker.unlink()
    found = collect(folder, DEFAULT_PARTS)
    assert found.checkpoint_step is None
    assert not any(key.startswith(("drafter/", "checkpoints/")) for key in keys(found))


def test_links_hidden_names_and_unfinished_writes_are_left_out(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("not of this run")
    folder = make_run(tmp_path / "run")
    (folder.logs / "stolen.log").symlink_to(outside / "secret.txt")
    (folder.dataset / "more").symlink_to(outside)
    (folder.root / ".hidden").write_text("x")
    (folder.root / ".run.json.0123456789ab.tmp").write_text("half")
    (folder.root / "manifest.json").write_text("{}")
    found = collect(folder, PART_ORDER, "all")
    names = " ".join(keys(found))
    for word in ("stolen", "secret", "hidden", ".tmp", "manifest.json", "more"):
        assert word not in names
    assert (
        sorted(found.notes)
        == [
            "more is a symbolic link and was left out",
            "stolen.log in logs is a symbolic link and was left out",
        ]
        or len(found.notes) == 2
    )


def test_only_the_last_completions_batch_still_changes(tmp_path):
    found = collect(make_run(tmp_path), ["completions"])
    settled = {file.path.name: file.settled for file in found.files}
    assert settled == {
        "batch_000000.jsonl": True,
        "batch_000001.jsonl": True,
        "batch_000002.jsonl": False,
        "progress.json": False,
    }


def test_steps_are_ordered_as_numbers(tmp_path):
    folder = make_run(tmp_path)
    make_checkpoint(folder, 100000)
    assert collect(folder, ["drafter"]).checkpoint_step == 100000
