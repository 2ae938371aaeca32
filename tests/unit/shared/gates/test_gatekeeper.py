import random

import pytest

from shared.config.schema import GateSection
from shared.gates import Candidate, Gatekeeper, GateTokens, Reason, window_size

TOKENS = GateTokens(3, 50, 51, ("<|im_end|>",))


def good(seq, rng, length=80):
    ids = [rng.randrange(100, 5000) for _ in range(length)]
    return Candidate(
        seq=seq,
        input_ids=ids,
        loss_mask=[0] * 10 + [1] * (length - 10),
        text=f"<think>\nthought {seq}\n</think>\n\nanswer {ids[-1]}<|im_end|>",
        prompt_sha256=f"{seq:064x}",
    )


def ok_sample(seq, rng, *, thinking):
    """What the target answers when the prompt was rendered without the thinking tokens."""
    prompt = [rng.randrange(100, 5000) for _ in range(40)]
    return Candidate(
        seq=seq,
        input_ids=[*prompt, 50, 52, 51, 52, 60, 61],
        loss_mask=[0] * 40 + [1] * 6,
        text="<think>\n\n</think>\n\nOK.<|im_end|>",
        thinking=thinking,
    )


def judge_all(keeper, samples):
    return [keeper.judge(sample).reason for sample in samples]


def test_exact_and_near_duplicates_keep_the_first():
    rng = random.Random(0)
    keeper = Gatekeeper(GateSection(), TOKENS, num_prompts=100)
    first, other = good(0, rng, 200), good(1, rng, 200)
    same = Candidate(**{**first.__dict__, "seq": 2})
    changed = list(first.input_ids)
    changed[100] = 9
    near = Candidate(**{**first.__dict__, "seq": 3, "input_ids": changed})
    half = Candidate(
        **{**first.__dict__, "seq": 4, "input_ids": first.input_ids[:100] + other.input_ids[100:]}
    )
    assert judge_all(keeper, [first, other, same, near, half]) == [
        None,
        None,
        Reason.EXACT_DUPLICATE,
        Reason.NEAR_DUPLICATE,
        None,
    ]
    report = keeper.report()
    by_reason = {item["reason"]: item for item in report["reasons"]}
    assert by_reason["exact_duplicate"]["examples"][0]["detail"] == "same tokens as completion 0"
    assert by_reason["near_duplicate"]["count"] == 1
    assert (report["num_seen"], report["num_accepted"]) == (5, 3)


def test_near_duplicates_can_be_left_alone():
    rng = random.Random(0)
    keeper = Gatekeeper(GateSection(near_duplicates=False), TOKENS, num_prompts=100)
    first = good(0, rng, 200)
    near = Candidate(**{**first.__dict__, "seq": 1, "input_ids": [9, *first.input_ids[1:]]})
    assert judge_all(keeper, [first, near, first]) == [None, None, Reason.EXACT_DUPLICATE]


@pytest.mark.parametrize(
    ("thinking", "reason"),
    [
        (True, "thinking_missing"),
        (None, "too_few_supervised_tokens"),
    ],
)
def test_the_disaster_of_empty_thoughts_blocks_at_the_end_of_the_window(thinking, reason):
    """87 % of 914 K samples were 'OK.' after an empty thought, and nobody looked."""
    rng = random.Random(1)
    keeper = Gatekeeper(GateSection(), TOKENS, num_prompts=914_000)
    assert keeper.window == 256
    blocked_at = None
    for seq in range(600):
        bad = rng.random() < 0.87
        keeper.judge(ok_sample(seq, rng, thinking=thinking) if bad else good(seq, rng))
        if keeper.verdict().blocked:
            blocked_at = seq + 1
            break
    assert blocked_at == 256
    verdict = keeper.verdict()
    assert reason in verdict.reason and "answers are the same" in verdict.reason
    assert "OK." in verdict.reason
    assert "generator.thinking" in verdict.cause and "empty thoughts" in verdict.cause
    report = keeper.report()
    entry = next(item for item in report["reasons"] if item["reason"] == reason)
    assert len(entry["examples"]) == 3 and "OK." in entry["examples"][0]["text"]
    assert report["mask_sums"]["most_frequent"]["value"] == 6
    assert report["mask_sums"]["most_frequent"]["share"] > 0.8
    assert report["blocked"] and report["window"] == {"size": 256, "passed": True}


def test_repeated_prompts_are_not_blamed_on_the_chat_template():
    rng = random.Random(7)
    keeper = Gatekeeper(GateSection(), TOKENS, num_prompts=80)
    judge_all(keeper, [good(0, rng)] * 30 + [good(seq, rng) for seq in range(1, 11)])
    verdict = keeper.verdict(final=True)
    assert "exact_duplicate" in verdict.reason and "answers are the same" in verdict.reason
    assert "remove repeats" in verdict.cause
    assert "chat template" not in verdict.cause
    assert verdict.text == f"{verdict.reason}. {verdict.cause}"


def test_good_data_never_blocks():
    rng = random.Random(2)
    keeper = Gatekeeper(GateSection(), TOKENS, num_prompts=400)
    for seq in range(300):
        assert keeper.judge(good(seq, rng)).accepted
        assert not keeper.verdict().blocked
    assert keeper.window_passed and not keeper.verdict(final=True).blocked


def test_one_bad_sample_in_a_tiny_window_does_not_block():
    rng = random.Random(3)
    keeper = Gatekeeper(GateSection(), TOKENS, num_prompts=8)
    assert keeper.window == 2
    judge_all(keeper, [good(0, rng), ok_sample(1, rng, thinking=True)])
    assert not keeper.verdict().blocked
    keeper.judge(ok_sample(2, rng, thinking=True))
    assert keeper.verdict().blocked


def test_a_short_end_is_judged_when_nothing_more_will_come():
    rng = random.Random(4)
    keeper = Gatekeeper(GateSection(), TOKENS, num_prompts=1000)
    judge_all(keeper, [ok_sample(seq, rng, thinking=True) for seq in range(5)])
    assert not keeper.verdict().blocked
    assert keeper.verdict(final=True).blocked


def test_judging_again_in_the_same_order_gives_the_same_state():
    rng = random.Random(5)
    samples = [
        good(seq, rng) if seq % 3 else ok_sample(seq, rng, thinking=True) for seq in range(120)
    ]
    samples += samples[:20]
    keepers = [Gatekeeper(GateSection(), TOKENS, num_prompts=100) for _ in range(2)]
    assert judge_all(keepers[0], samples) == judge_all(keepers[1], samples)
    assert keepers[0].report() == keepers[1].report()


def test_histogram_has_powers_of_two_and_counts_every_sample():
    rng = random.Random(6)
    keeper = Gatekeeper(GateSection(), TOKENS, num_prompts=100)
    judge_all(keeper, [good(0, rng, 80), ok_sample(1, rng, thinking=None)])
    bins = {(b["from"], b["to"]): b["count"] for b in keeper.report()["mask_sums"]["histogram"]}
    assert bins[4, 8] == 1 and bins[64, 128] == 1 and sum(bins.values()) == 2


def test_window_size_is_at_most_a_quarter_of_the_prompts():
    gates = GateSection()
    assert [window_size(gates, n) for n in (1, 8, 440, 5000)] == [1, 2, 110, 256]
