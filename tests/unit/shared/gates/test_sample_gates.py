import numpy as np
import pytest

from shared.config.schema import GateSection
from shared.gates import Candidate, GateTokens, Reason
from shared.gates.checks import SampleChecks
from shared.gates.ngrams import repeated_shares

OPEN, CLOSE, MASK = 50, 51, 3
TOKENS = GateTokens(MASK, OPEN, CLOSE, ("<|im_end|>", "<|mask|>"))
GOOD = "<think>\nadd the two numbers\n</think>\n\nThe answer is 4.<|im_end|>"


def candidate(text=GOOD, *, prompt=(10, 11, 12), output=tuple(range(100, 120)), **changes):
    ids, mask = [*prompt, *output], [0] * len(prompt) + [1] * len(output)
    return Candidate(**{"seq": 0, "input_ids": ids, "loss_mask": mask, "text": text, **changes})


def reason(sample, **gates):
    found = SampleChecks(GateSection(**gates), TOKENS).first_finding(sample)
    return found and found.reason


def test_a_good_answer_passes():
    assert reason(candidate(thinking=True)) is None
    assert reason(candidate("The answer is 4.<|im_end|>", thinking=False)) is None
    assert reason(candidate("The answer is 4.<|im_end|>")) is None


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (candidate("", output=()), Reason.EMPTY),
        (candidate(" \n\t "), Reason.EMPTY),
        (candidate("<|im_end|>\n"), Reason.SCAFFOLD_ONLY),
        (candidate("<think>\n\n</think>\n\n<|im_end|>"), Reason.SCAFFOLD_ONLY),
        (candidate(output=(*range(100, 110), MASK)), Reason.MASK_TOKEN),
        (candidate(prompt=(10, MASK)), Reason.MASK_TOKEN),
        (candidate(finish_reason="length"), Reason.TRUNCATED),
        (candidate("<think>\non and on", finish_reason="length"), Reason.THINKING_NOT_CLOSED),
        (candidate("on and on", prompt=(10, OPEN), thinking=True), Reason.THINKING_NOT_CLOSED),
        (candidate("The answer is 4.", thinking=True), Reason.THINKING_MISSING),
        (candidate("<think>\n\n</think>\n\nOK.<|im_end|>", thinking=True), Reason.THINKING_MISSING),
        (candidate(output=range(100, 106)), Reason.TOO_FEW_SUPERVISED),
        (candidate(output=[7, 8, 9, 7] * 30), Reason.REPETITION_LOOP),
    ],
)
def test_each_reason(sample, expected):
    assert reason(sample) is expected


def test_a_closed_block_in_the_prompt_is_no_open_thought():
    assert reason(candidate("Four.", prompt=(10, OPEN, 12, CLOSE, 13), thinking=False)) is None


def test_an_opening_tag_in_the_prompt_needs_only_the_closing_one_in_the_answer():
    answer = "add the numbers\n</think>\n\nThe answer is 4.<|im_end|>"
    assert reason(candidate(answer, prompt=(10, OPEN), thinking=True)) is None
    empty = "\n</think>\n\nOK.<|im_end|>"
    assert reason(candidate(empty, prompt=(10, OPEN), thinking=True)) is Reason.THINKING_MISSING


def test_lone_supervised_tokens_cannot_be_trained_on():
    sample = candidate(loss_mask=[0, 1] * 11 + [0], text=None)
    assert reason(sample) is Reason.NO_CONSECUTIVE_SUPERVISED


def test_configuration_turns_gates_off():
    assert reason(candidate(finish_reason="length"), drop_truncated=False) is None
    unclosed = candidate("<think>\non and on", thinking=True)
    assert reason(unclosed, require_closed_thinking=False) is None
    assert reason(candidate(output=(5, 6)), min_supervised_tokens=2) is None
    loop = candidate(output=[7, 8, 9, 7] * 30)
    assert reason(loop, max_repeated_ngram_share=1.0) is None


def repeated_ngram_share(ids):
    return repeated_shares(np.array(ids), np.array([0, len(ids)]))[0]


def test_a_late_loop_counts_by_its_share():
    fresh = list(range(1000, 1100))
    assert repeated_ngram_share(fresh) == 0
    assert repeated_ngram_share([7] * 20) == 0  # too short to judge
    assert 0.45 < repeated_ngram_share(fresh + [1, 2] * 50) < 0.5
