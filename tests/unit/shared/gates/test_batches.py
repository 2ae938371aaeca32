"""How candidates are grouped must not matter, and the fast counts are those of plain loops."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.config.schema import GateSection
from shared.gates import Candidate, CandidateBatch, Gatekeeper, GateTokens, Reason
from shared.gates.key_table import KeyTable
from shared.gates.minhash import Bands
from shared.gates.ngrams import ngram_hashes, offsets_of, repeated_shares
from shared.gates.words import word_hashes

TOKENS = GateTokens(3, 50, 51, ("<|im_end|>",))


def tokens(rng, length):
    return [rng.randrange(100, 5000) for _ in range(length)]


def changed(ids, rng, share):
    return [rng.randrange(100, 5000) if rng.random() < share else one for one in ids]


def troubled(rng, count):
    """Good samples, each reason, chains of ever less similar copies, shared boilerplate."""
    boilerplate, kept = tokens(rng, 150), []
    for seq in range(count):
        kind = rng.randrange(12)
        text, finish, thinking, ids = f"answer {seq}", "stop", None, tokens(rng, 120)
        mask = [0] * 20 + [1] * (len(ids) - 20)
        if kind == 0 and kept:
            ids = list(rng.choice(kept))
        elif kind in (1, 2, 3) and kept:
            ids = changed(rng.choice(kept), rng, rng.choice([0.004, 0.01, 0.02]))
        elif kind == 4:
            ids = boilerplate + tokens(rng, rng.randrange(5, 30))
        elif kind == 5:
            ids = tokens(rng, 30) + [7, 8, 9] * 40
        elif kind == 6:
            ids, thinking, text = tokens(rng, 26), True, "<think>\n\n</think>\n\nOK.<|im_end|>"
        elif kind == 7:
            text, finish = rng.choice(["", " \n", "<|im_end|>", "<think>on", "cut"]), "length"
        elif kind == 8:
            ids[rng.randrange(len(ids))] = rng.choice([3, 50, 51])
        mask = [0] * 20 + [1] * (len(ids) - 20)
        if kind == 9:
            mask, ids = [1, 0] * 40, ids[:80]
        kept.append(ids)
        yield Candidate(seq, ids, mask, f"{seq:064x}", text, finish, thinking)


def judge_in(samples, size):
    keeper = Gatekeeper(GateSection(), TOKENS, num_prompts=100)
    judged = []
    for first in range(0, len(samples), size):
        judged += keeper.judge_batch(CandidateBatch.of(samples[first : first + size]))
    return judged, keeper


@pytest.fixture(scope="module")
def samples():
    return list(troubled(random.Random(4), 700))


@pytest.fixture(scope="module")
def one_by_one(samples):
    judged, keeper = judge_in(samples, 1)
    return judged, keeper.report()


@pytest.mark.parametrize("size", [7, 256])
def test_the_size_of_a_batch_changes_no_judgement(samples, one_by_one, size):
    judged, keeper = judge_in(samples, size)
    assert judged == one_by_one[0]
    assert keeper.report() == one_by_one[1]


def test_the_samples_of_that_test_meet_every_reason(one_by_one):
    assert {one.reason for one in one_by_one[0]} == {None, *Reason}


def test_stopping_in_a_batch_leaves_the_rest_as_if_it_had_not_come(samples, one_by_one):
    keeper = Gatekeeper(GateSection(), TOKENS, num_prompts=100)
    judged = []
    while len(judged) < len(samples):
        stop_at = (len(judged) + 9) // 10 * 10 + 3
        start = len(judged)
        judged += keeper.judge_batch(
            CandidateBatch.of(samples[start : start + 64]),
            lambda at, _, start=start, stop_at=stop_at: start + at >= stop_at,
        )
    assert judged == one_by_one[0] and keeper.report() == one_by_one[1]


def test_near_duplicates_are_found_by_their_true_similarity():
    rng = random.Random(8)
    found = {0.95: 0, 0.8: 0}
    for wanted in found:
        keeper = Gatekeeper(GateSection(), GateTokens(), num_prompts=100)
        for pair in range(100):
            first = tokens(rng, 400)
            # k cut-off tokens at one end: k of 396 + k shingles differ, J = (396 - k) / (396 + k).
            cut = round(396 * (1 - wanted) / (1 + wanted))
            other = first[cut:] + tokens(rng, cut)
            batch = [
                Candidate(2 * pair + at, ids, [1] * 400) for at, ids in ((0, first), (1, other))
            ]
            judged = keeper.judge_batch(CandidateBatch.of(batch))
            assert judged[0].accepted
            found[wanted] += judged[1].reason is Reason.NEAR_DUPLICATE
    assert found[0.95] >= 95 and found[0.8] <= 2


def test_boilerplate_hides_no_duplicate_and_is_none():
    """A thousand samples share most of their text; copies of late ones are still found."""
    rng = random.Random(9)
    common = tokens(rng, 400)
    rows = [common + tokens(rng, 80) for _ in range(1000)]
    for at in range(500, 600):
        rows.append([*rows[at]])
        rows[-1][rng.randrange(480)] = 9
    judged, _ = judge_in([Candidate(at, ids, [1] * len(ids)) for at, ids in enumerate(rows)], 256)
    assert all(one.accepted for one in judged[:1000])
    copies = dict(zip(range(500, 600), judged[1000:], strict=True))
    assert sum(one.reason is Reason.NEAR_DUPLICATE for one in copies.values()) >= 95
    of_the_original = sum(f"to completion {at}" in one.detail for at, one in copies.items())
    assert of_the_original >= 95


def test_a_million_samples_fit():
    """Memory grows with the accepted samples as documented."""
    rng = np.random.default_rng(0)
    keeper = Gatekeeper(GateSection(), GateTokens(), num_prompts=100)
    for first in range(0, 6000, 500):
        keeper.judge_batch(
            CandidateBatch.of_tokens(
                seqs=range(first, first + 500),
                ids=rng.integers(0, 50_000, 500 * 60),
                supervised=np.ones(500 * 60, bool),
                offsets=offsets_of(np.full(500, 60)),
            )
        )
    assert keeper.ledger.num_accepted == 6000
    assert keeper.memory_bytes / 6000 < 850


@given(st.lists(st.lists(st.integers(0, 3), max_size=60), max_size=12))
def test_repetition_is_what_a_set_of_tuples_says(rows):
    offsets = offsets_of(np.array([len(row) for row in rows], np.int64))
    units = np.array([one for row in rows for one in row], np.int64)
    expected = []
    for row in rows:
        total = len(row) - 9
        grams = {tuple(row[at : at + 10]) for at in range(total)}
        expected.append(1 - len(grams) / total if total >= 32 else 0)
    assert repeated_shares(units, offsets).tolist() == pytest.approx(expected)


@given(st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=12))
def test_ngrams_never_cross_samples_and_are_equal_only_when_their_units_are(rows):
    offsets = offsets_of(np.array([len(row) for row in rows], np.int64))
    units = np.array([one for row in rows for one in row], np.int64)
    hashes, starts = ngram_hashes(units, offsets, 5)
    grams = [tuple(row[at : at + 5]) for row in rows for at in range(len(row) - 4)]
    assert np.diff(starts).tolist() == [max(len(row) - 4, 0) for row in rows]
    by_hash = dict(zip(hashes.tolist(), grams, strict=True))
    assert [by_hash[one] for one in hashes.tolist()] == grams
    assert len(by_hash) == len(set(grams))


@given(st.lists(st.text(alphabet="ab é日本\n\t\u3000x.", max_size=20), max_size=8))
def test_words_of_many_texts_are_the_words_of_each(texts):
    hashes, offsets = word_hashes(texts)
    assert len(offsets) == len(texts) + 1 and offsets[-1] == len(hashes)
    for at, text in enumerate(texts):
        alone, _ = word_hashes([text])
        assert hashes[offsets[at] : offsets[at + 1]].tolist() == alone.tolist()
        if text.isascii():
            assert len(alone) == len(text.split())
            by_word = dict(zip(alone.tolist(), text.split(), strict=True))
            assert [by_word[one] for one in alone.tolist()] == text.split()


def test_text_without_spaces_has_words():
    hashes, _ = word_hashes(["日本語の文", "本日"])
    assert len(hashes) == 7 and hashes[0] == hashes[6] and hashes[1] == hashes[5]


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=3000), st.randoms())
def test_a_key_table_is_a_dict(keys, rng):
    table, expected = KeyTable(), {}
    at = 0
    while at < len(keys):
        some = keys[at : at + rng.randrange(1, 900)]
        rows = np.arange(at, at + len(some))
        table.add(np.array(some, np.uint64), rows)
        expected.update(zip(some, rows.tolist(), strict=True))
        at += len(some)
    asked = [*keys, *(one ^ 1 for one in keys)]
    found = table.find(np.array(asked, np.uint64)).tolist()
    assert found == [expected.get(one, -1) for one in asked] and len(table) == len(keys)


@pytest.mark.parametrize("similarity", [0.3, 0.5, 0.8, 0.9, 0.99, 1.0])
def test_bands_find_nearly_every_pair_at_the_threshold(similarity):
    bands = Bands.for_threshold(similarity)
    assert bands.num_bands * bands.num_rows <= 128
    assert 1 - (1 - min(similarity, 0.99) ** bands.num_rows) ** bands.num_bands >= 0.99
