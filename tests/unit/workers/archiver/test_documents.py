"""PROGRESS.md says what the folder holds; hardware.json is written once for a machine."""

import json

from tests.helpers.run_folders import make_run
from workers.archiver.documents import (
    ArchiveFacts,
    read_facts,
    record_hardware,
    render,
    write_progress,
)


def test_progress_counts_what_is_there(tmp_path):
    folder = make_run(tmp_path)
    folder.evaluations.mkdir()
    result = {"acceptance_length": 2.875, "checkpoint_step": 20, "num_prompts": 32}
    (folder.evaluations / "e1.json").write_text(json.dumps(result))
    baselines = {
        "baselines": {"prompt_lookup": 1.5, "untrained": 1.02},
        "baselines_num_prompts": 4,
        "acceptance_length_on_baseline_prompts": 3.0,
    }
    (folder.evaluations / "e2.json").write_text(json.dumps({**result, **baselines}))
    record_hardware(folder)
    archive = ArchiveFacts("s3://bucket/x", 3, 5_000_000, 1, 1000, "the store is away")
    text = render(read_facts(folder, "run-1", "demo"), archive)
    for line in (
        "# demo (run-1)",
        "- State: running",
        "- Completions: 3 of 10, 1 failed",
        "- Samples accepted: 10 in 2 shards, 100 tokens",
        "- Quarantined, empty: 1",
        "- Last step written: step 2, loss 2.25",
        "- e1: acceptance length 2.875 on 32 prompts at step 20",
        "- e2: acceptance length 2.875 on 32 prompts at step 20; "
        "on 4 of them 3.000 beside 1.020 untrained, 1.500 prompt lookup",
        "- Verified there: 3 files, 5.00 MB",
        "- Waiting: 1 files, 1.00 kB",
        "- Held up: the store is away",
    ):
        assert line in text.splitlines(), line
    assert "step 10:" in text
    assert "step 20:" in text
    assert "step 30" not in text


def test_epochs_count_from_one_and_a_reason_says_more_than_the_state(tmp_path):
    folder = make_run(tmp_path)
    run = {"state": "paused", "reason": "paused", "config": {"train": {"num_epochs": 4}}}
    folder.run_json.write_text(json.dumps(run))
    folder.metrics_jsonl.write_text('{"step": 3, "epoch": 2, "loss": 1.5}\n')
    lines = render(read_facts(folder, "run-1", "demo"), None).splitlines()
    assert "- State: paused" in lines
    assert "- Last step written: step 3, epoch 3 of 4, loss 1.5" in lines


def test_an_empty_run_has_a_progress_too(tmp_path):
    folder = make_run(tmp_path / "run")
    for path in sorted(folder.root.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    write_progress(folder, "run-1", "demo", None)
    assert folder.progress_md.read_text().count("Nothing yet") == 2


def test_progress_is_written_only_when_it_changes(tmp_path):
    folder = make_run(tmp_path)
    write_progress(folder, "run-1", "demo", None)
    before = folder.progress_md.stat().st_ino
    write_progress(folder, "run-1", "demo", None)
    assert folder.progress_md.stat().st_ino == before
    folder.metrics_jsonl.write_text('{"step": 3, "loss": 1.5}\n')
    write_progress(folder, "run-1", "demo", None)
    assert "step 3, loss 1.5" in folder.progress_md.read_text()


def test_damaged_files_do_not_stop_the_document(tmp_path):
    folder = make_run(tmp_path)
    folder.run_json.write_text("{")
    folder.dataset_json.write_text("[]")
    folder.metrics_jsonl.write_text('{"step": 1}\nnot json\n')
    write_progress(folder, "run-1", "demo", None)
    assert "# demo (run-1)" in folder.progress_md.read_text()
