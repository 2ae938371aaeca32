"""Completions to sealed segments: restarts at every point give the same files."""

import json
import random

import msgspec
import pytest

from services.data.dataset import DatasetInfo, Fingerprint, read_dataset
from services.data.shards import ShardReader
from shared.config.schema import GateSection
from shared.errors import DataError, IntegrityError
from shared.gates import Gatekeeper, GateTokens
from shared.layout import RunFolder
from shared.messages import Completion
from tests.helpers.damage import flip_bit
from workers.batcher.builder import DatasetBuilder, load_info
from workers.batcher.repair import ShardRepair, damaged_shards
from workers.batcher.samples import sample_of

GATES = GateSection()
PRINT = Fingerprint("t", "c", 3, 60, 4, 7, GATES.model_dump(mode="json"))


def completion(seq, *, bad=False, length=40):
    rng = random.Random(seq)
    output = [rng.randrange(100, 900) for _ in range(5 if bad else length)]
    return Completion(
        seq=seq,
        prompt_index=seq,
        prompt_sha256=f"{seq:064x}",
        occurrence=0,
        prompt_ids=[11, 12, 13, 1000 + seq],
        output_ids=output,
        finish_reason="stop",
        thinking=None,
        text=f"answer {seq}",
        sampling={},
    )


LOG = [completion(seq, bad=seq % 5 == 4, length=30 + seq) for seq in range(23)]


def make(root, fingerprint=PRINT):
    folder = RunFolder(root)
    info = load_info(folder, fingerprint) or DatasetInfo(fingerprint, num_prompts=23)
    return DatasetBuilder(folder, info, Gatekeeper(GATES, GateTokens(3), num_prompts=23))


def take_all(builder, log=LOG):
    return [found for one in log if (found := builder.take(one)) is not None]


def files(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def finished(tmp_path):
    root = tmp_path / "undisturbed"
    builder = make(root)
    take_all(builder)
    builder.finish()
    return root


def test_segments_hold_the_accepted_samples_in_log_order(finished):
    info = read_dataset(finished / "dataset")
    assert [one.num_samples for one in info.segments] == [4, 4, 4, 4, 3]
    assert info.complete and info.report["num_accepted"] == 19
    accepted = [one for one in LOG if one.seq % 5 != 4]
    read = [
        reader.sample(row)
        for one in info.segments
        for reader in [ShardReader(finished / "dataset" / one.file, num_bytes=one.num_bytes)]
        for row in range(len(reader))
    ]
    assert read == [sample_of(one, 60) for one in accepted]
    assert info.num_tokens == sum(len(one.input_ids) for one in read)
    lines = (finished / "quarantine" / "too_few_supervised_tokens.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [4, 9, 14, 19]


def test_a_long_sample_is_cut_and_its_mask_with_it():
    sample = sample_of(completion(0, length=100), 60)
    assert len(sample.input_ids) == 60 and sample.loss_mask == [0] * 4 + [1] * 56
    only_prompt = sample_of(completion(0), 3)
    assert only_prompt.input_ids == [11, 12, 13] and only_prompt.loss_mask == [0, 0, 0]


@pytest.mark.parametrize("stop", [0, 1, 4, 5, 9, 13, 19, 23])
def test_a_restart_after_any_completion_gives_the_same_files(tmp_path, finished, stop):
    root = tmp_path / "disturbed"
    take_all(make(root), LOG[:stop])  # what was pending in memory is lost
    again = make(root)
    assert again.next_seq == 0
    take_all(again)
    again.finish()
    assert files(root) == files(finished)


def test_a_crash_between_quarantine_and_shard_leaves_no_line_twice(tmp_path, finished):
    root = tmp_path / "disturbed"
    builder = make(root)
    take_all(builder, LOG[:9])
    path = root / "quarantine" / "too_few_supervised_tokens.jsonl"
    path.write_bytes(path.read_bytes() + b'{"seq": 9, "reason": "too few')
    (root / "quarantine" / "empty.jsonl").write_bytes(b'{"seq": 9, "reason": "empty"}\n')
    (root / "dataset" / "shard_00002.arrow").write_bytes(b"half a shard")
    again = make(root)
    take_all(again)
    again.finish()
    assert files(root) == files(finished)


def test_the_end_may_fall_on_a_segments_end(tmp_path):
    builder = make(tmp_path)
    assert len(take_all(builder, LOG[:4])) == 1
    take_all(builder, LOG[4:5])
    assert builder.finish() is None
    info = read_dataset(tmp_path / "dataset")
    assert info.complete and len(info.segments) == 1
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


def test_nothing_accepted_is_an_error_with_counts(tmp_path):
    builder = make(tmp_path)
    take_all(builder, [completion(seq, bad=True) for seq in range(3)])
    with pytest.raises(DataError, match=r"none of 3 completions.*3 too_few_supervised_tokens"):
        builder.finish()


def test_a_gap_in_the_log_and_a_changed_log_are_noticed(tmp_path):
    builder = make(tmp_path)
    with pytest.raises(IntegrityError, match="sent seq 2, expected 0"):
        builder.take(LOG[2])
    take_all(builder, LOG[:6])
    changed = make(tmp_path)
    with pytest.raises(IntegrityError, match="gives 3 samples, but 4 were sealed"):
        take_all(changed, [completion(0, bad=True), *LOG[1:6]])


def test_another_configuration_does_not_extend_the_data_set(tmp_path):
    take_all(make(tmp_path))
    other = msgspec.structs.replace(PRINT, max_length=50, seed=8)
    with pytest.raises(DataError, match=r"max_length, seed changed.*Start a new run"):
        make(tmp_path, other)


def empty_thought(seq):
    """What a thinking model says when the prompt was rendered without the thinking tokens."""
    one = completion(seq)
    changes = {"output_ids": [5, 6, 7, 8, 9, 10], "thinking": True}
    return msgspec.structs.replace(one, text="<think>\n\n</think>\n\nOK.<|im_end|>", **changes)


def test_a_batch_is_taken_up_to_the_completion_at_which_the_gates_block(tmp_path):
    log = [empty_thought(seq) if seq % 8 else completion(seq) for seq in range(500)]
    info = DatasetInfo(PRINT, num_prompts=914_000)
    keeper = Gatekeeper(GATES, GateTokens(3), num_prompts=914_000)
    builder = DatasetBuilder(RunFolder(tmp_path), info, keeper)
    taken = builder.take_some(log, stop_when_blocked=True)
    assert taken.num_taken == builder.next_seq == 256 == keeper.ledger.num_seen
    assert sum(one.num_samples for one in taken.sealed) == 32 == builder.num_accepted
    assert not builder.info.gates_open and "generator.thinking" in builder.verdict().cause
    # A person overrides it: the rest is taken as if it had come now.
    assert builder.take_some(log[256:]).num_taken == 244
    assert builder.num_accepted == 63


@pytest.mark.parametrize("size", [3, 23])
def test_files_are_the_same_whatever_arrives_together(tmp_path, finished, size):
    builder = make(tmp_path / "together")
    for first in range(0, len(LOG), size):
        builder.take_some(LOG[first : first + size])
    builder.finish()
    assert files(tmp_path / "together") == files(finished)


def repair_of(root, damaged):
    folder = RunFolder(root)
    keeper = Gatekeeper(GATES, GateTokens(3), num_prompts=23)
    return ShardRepair(folder, load_info(folder, PRINT), keeper, damaged)


def test_damaged_shards_are_found_and_made_again(finished):
    before = files(finished)
    flip_bit(finished / "dataset" / "shard_00001.arrow")
    (finished / "dataset" / "shard_00004.arrow").unlink()
    folder = RunFolder(finished)
    damaged = damaged_shards(folder, load_info(folder, PRINT))
    assert sorted(damaged) == [1, 4]
    assert "shard_00001.arrow is damaged" in damaged[1] and "missing" in damaged[4]
    repair = repair_of(finished, damaged)
    for one in LOG:
        repair.take(one)
    assert repair.done and files(finished) == before


def test_a_log_that_gives_other_samples_repairs_nothing(finished):
    flip_bit(finished / "dataset" / "shard_00001.arrow")
    before = files(finished)
    repair = repair_of(finished, {1: "shard 1 is damaged"})
    changed = msgspec.structs.replace(LOG[6], output_ids=[*LOG[6].output_ids[:-1], 5])
    with pytest.raises(IntegrityError, match="cannot replace it: it gives a shard with sha256"):
        for one in [*LOG[:6], changed, *LOG[7:]]:
            repair.take(one)
    short = repair_of(finished, {1: "shard 1 is damaged"})
    short.take(LOG[0])
    with pytest.raises(IntegrityError, match="the log ends at seq 1"):
        short.log_ended()
    assert files(finished) == before
