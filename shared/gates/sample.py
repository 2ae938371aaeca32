"""A sample that asks to be accepted, and the columns in which many of them are judged.

    Candidate ... -> CandidateBatch <- columns of a shard, words of conversations

A batch holds no more than its candidates do: how candidates are grouped never changes a judgement.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.gates.ngrams import offsets_of, sums
from shared.gates.reasons import Reason

Unit = Literal["token", "word"]


@dataclass(frozen=True)
class GateTokens:
    """What the gates must know of the tokenizer."""

    mask_token_id: int | None = None
    think_open_id: int | None = None
    think_close_id: int | None = None
    special_texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A sample that asks to be accepted.

    `input_ids` and `loss_mask` are what would be trained on, already cut to the maximal length;
    `text` is the decoded answer with special tokens, None for data that was tokenised elsewhere
    (the checks of text do not apply then).
    """

    seq: int
    input_ids: Sequence[int]
    loss_mask: Sequence[int]
    prompt_sha256: str = ""
    text: str | None = None
    finish_reason: str = "stop"
    thinking: bool | None = None


@dataclass(frozen=True)
class Finding:
    """Why a sample is rejected; `detail` has the figures."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class CandidateBatch:
    """Candidates in columns; B samples with T units altogether.

    With unit "token" `units` are token ids; with "word", hashes of words: the gates that only
    tokens have (mask token, supervised tokens) do not apply then. `sizes` fills the histogram:
    supervised tokens, or characters of the answers. `sources` names the samples in examples, as
    file and line.
    """

    unit: Unit
    seqs: Sequence[int]
    units: NDArray[np.int64]  # [T]
    supervised: NDArray[np.bool_]  # [T]
    offsets: NDArray[np.int64]  # [B + 1]
    sizes: NDArray[np.int64]  # [B]
    content_keys: NDArray[np.uint64]  # [B] equal for exact duplicates
    response_keys: NDArray[np.uint64]  # [B] equal for equal answers
    texts: Sequence[str | None]
    prompt_sha256: Sequence[str]
    finish_reasons: Sequence[str]
    thinking: Sequence[bool | None]
    sources: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.seqs)

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> CandidateBatch:
        """Candidates of tokens as columns."""
        lengths = np.array([len(one.input_ids) for one in candidates], np.int64)
        total = int(lengths.sum())
        ids = itertools.chain.from_iterable([one.input_ids for one in candidates])
        masks = itertools.chain.from_iterable([one.loss_mask for one in candidates])
        return cls.of_tokens(
            seqs=[one.seq for one in candidates],
            ids=np.fromiter(ids, np.int64, total),
            supervised=np.fromiter(masks, bool, total),
            offsets=offsets_of(lengths),
            texts=[one.text for one in candidates],
            prompt_sha256=[one.prompt_sha256 for one in candidates],
            finish_reasons=[one.finish_reason for one in candidates],
            thinking=[one.thinking for one in candidates],
        )

    @classmethod
    def of_tokens(
        cls,
        *,
        seqs: Sequence[int],
        ids: NDArray[np.int64],
        supervised: NDArray[np.bool_],
        offsets: NDArray[np.int64],
        texts: Sequence[str | None] | None = None,
        prompt_sha256: Sequence[str] | None = None,
        finish_reasons: Sequence[str] | None = None,
        thinking: Sequence[bool | None] | None = None,
        sources: Sequence[str] | None = None,
    ) -> CandidateBatch:
        """Flat token columns: ids [T], supervised [T], offsets [B + 1]; the rest has defaults."""
        assert len(ids) == len(supervised) == offsets[-1], "ids, mask and offsets belong together"
        count = len(seqs)
        sizes = sums(supervised, offsets)
        return cls(
            unit="token",
            seqs=seqs,
            units=ids,
            supervised=supervised,
            offsets=offsets,
            sizes=sizes,
            content_keys=row_keys(ids, offsets),
            response_keys=row_keys(ids[supervised], offsets_of(sizes)),
            texts=[None] * count if texts is None else texts,
            prompt_sha256=[""] * count if prompt_sha256 is None else prompt_sha256,
            finish_reasons=["stop"] * count if finish_reasons is None else finish_reasons,
            thinking=[None] * count if thinking is None else thinking,
            sources=sources,
        )


def row_keys(ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """[B] hashes of the samples' token ids."""
    small = ids.astype(np.uint32)  # token ids are smaller; half as much to hash
    data = small.data.cast("B") if len(small) else memoryview(b"")
    ends = (offsets * small.itemsize).tolist()
    return _keys([data[a:b] for a, b in itertools.pairwise(ends)])


def text_keys(texts: Sequence[str]) -> NDArray[np.uint64]:
    """[B] hashes of texts."""
    return _keys([text.encode("utf-8", "surrogatepass") for text in texts])


def _keys(rows: Sequence[bytes | memoryview]) -> NDArray[np.uint64]:
    blake2b = hashlib.blake2b
    digests = b"".join([blake2b(row, digest_size=8).digest() for row in rows])
    return np.frombuffer(digests, np.uint64)
