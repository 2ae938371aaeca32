"""Rows of conversations as candidates for the gates, with a tokenizer or without one.

    raw rows -> RowShapes -> chunks -> ConversationBatcher -> CandidateBatch (words or tokens)
                      `-> UnusableRows

The answer that is judged is an assistant turn that is empty or whose thought is not closed, if
there is one, else the last. A row without an assistant turn is judged by its prompt alone.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from services.data.candidates import BATCH_SAMPLES
from services.data.conversation import Message
from services.data.prompts import parse_row
from services.data.raw import Place, RawRow, Unreadable
from services.data.shapes import RowShapes
from shared.errors import DataError
from shared.gates import CandidateBatch
from shared.gates.checks import THINK_CLOSE, THINK_OPEN
from shared.gates.ngrams import offsets_of
from shared.gates.sample import text_keys
from shared.gates.words import word_hashes

_NUM_EXAMPLES = 3
_AHEAD = 2  # chunks that are being tokenised while one is judged
_ANSWER_FIELDS = ("response", "output")


@dataclass
class UnusableRows:
    """Rows that no run could use: how many, and what is wrong with the first ones."""

    count: int = 0
    examples: list[dict[str, str]] = field(default_factory=list)

    def add(self, place: Place, problem: str) -> None:
        self.count += 1
        if len(self.examples) < _NUM_EXAMPLES:
            self.examples.append({"source": f"{place.file}, {place}", "detail": problem})


Chunk = Sequence[tuple[Place, list[Message]]]


@dataclass(frozen=True)
class Turns:
    """The turns of a chunk, one after the other; `offsets` [B + 1] says where a row begins."""

    texts: list[str]
    supervised: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    answers: list[str | None]  # [B] the one that is judged

    @classmethod
    def of(cls, chunk: Chunk) -> Turns:
        texts: list[str] = []
        is_answer: list[bool] = []
        answers: list[str | None] = []
        for _, messages in chunk:
            own: list[str] = []
            for message in messages:
                text = message["content"]
                if len(message) > 2:
                    text = _whole_turn(message, text)
                texts.append(text)
                is_answer.append(message["role"] == "assistant")
                if is_answer[-1]:
                    own.append(text)
            answers.append(_judged_answer(own))
        lengths = np.array([len(messages) for _, messages in chunk], np.int64)
        return cls(texts, np.array(is_answer, bool), offsets_of(lengths), answers)


@dataclass(frozen=True)
class ConversationBatcher:
    """Makes batches of conversations; `tokenizer` None counts words instead of tokens."""

    tokenizer: Tokenizer | None = None
    thinking: bool | None = None

    def batches(self, chunks: Iterable[Chunk], first_seq: int) -> Iterator[CandidateBatch]:
        """Batches of the chunks in order. Texts are tokenised in a thread, up to two chunks ahead.

        Everything else stays in the caller's thread: it holds Python's lock, the tokenizer not.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as pool:
            waiting: deque[tuple[Chunk, Turns, Future[list[Encoding]]]] = deque()
            for chunk in chunks:
                turns = Turns.of(chunk)
                waiting.append((chunk, turns, pool.submit(self._encode, turns.texts)))
                if len(waiting) > (_AHEAD if self.tokenizer is not None else 0):
                    yield self._batch(*waiting.popleft(), first_seq)
                    first_seq += BATCH_SAMPLES
            while waiting:
                yield self._batch(*waiting.popleft(), first_seq)
                first_seq += BATCH_SAMPLES

    def _encode(self, texts: Sequence[str]) -> list[Encoding]:
        if self.tokenizer is None:
            return []
        found: list[Encoding] = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return found

    def _batch(
        self, chunk: Chunk, turns: Turns, encoded: Future[list[Encoding]], first_seq: int
    ) -> CandidateBatch:
        """Columns of conversations with their places."""
        seqs = range(first_seq, first_seq + len(chunk))
        sources = [f"{place.file}, {place.unit} {place.number}" for place, _ in chunk]
        texts, answers, supervised, ends = (
            turns.texts,
            turns.answers,
            turns.supervised,
            turns.offsets,
        )
        thinking = [self.thinking] * len(answers)
        if self.tokenizer is not None:
            rows = [one.ids for one in encoded.result()]
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            total = int(lengths.sum())
            return CandidateBatch.of_tokens(
                seqs=seqs,
                ids=np.fromiter(itertools.chain.from_iterable(rows), np.int64, total),
                supervised=np.repeat(supervised, lengths),
                offsets=offsets_of(lengths)[ends],
                texts=answers,
                thinking=thinking,
                sources=sources,
            )
        words, by_turn = word_hashes(texts)
        characters = np.fromiter(map(len, texts), np.int64, len(texts))
        characters[~supervised] = 0
        return CandidateBatch(
            unit="word",
            seqs=seqs,
            units=words,
            supervised=np.repeat(supervised, np.diff(by_turn)),
            offsets=by_turn[ends],
            sizes=np.diff(offsets_of(characters)[ends]),
            content_keys=text_keys(["\x1e".join(texts[a:b]) for a, b in pairwise(ends.tolist())]),
            response_keys=text_keys([answer or "" for answer in answers]),
            texts=answers,
            prompt_sha256=[""] * len(answers),
            finish_reasons=["stop"] * len(answers),
            thinking=thinking,
            sources=sources,
        )


def chunks(
    rows: Generator[RawRow | Unreadable, None, None], shapes: RowShapes, unusable: UnusableRows
) -> Iterator[Chunk]:
    """The usable rows in order, BATCH_SAMPLES at a time; others go to `unusable`."""
    with closing(rows):
        usable = _usable(rows, shapes, unusable)
        while chunk := list(itertools.islice(usable, BATCH_SAMPLES)):
            yield chunk


def _usable(
    rows: Iterable[RawRow | Unreadable], shapes: RowShapes, unusable: UnusableRows
) -> Iterator[tuple[Place, list[Message]]]:
    for row in rows:
        if isinstance(row, Unreadable):
            unusable.add(row.place, row.problem)
            continue
        try:
            tree = parse_row(row.content) if isinstance(row.content, bytes) else row.content
            found = shapes.conversation(tree)
        except DataError as error:
            unusable.add(row.place, error.detail)
            continue
        answers = found.answers
        if not answers and any(shapes.column(tree, one) == "" for one in _ANSWER_FIELDS):
            answers = [{"role": "assistant", "content": ""}]  # an answer that says nothing
        yield row.place, [*found.messages, *answers]


def _judged_answer(answers: Sequence[str]) -> str | None:
    for text in answers:
        if not text.strip() or (THINK_OPEN in text and THINK_CLOSE not in text):
            return text
    return answers[-1] if answers else None


def _whole_turn(message: Mapping[str, Any], content: str) -> str:
    """Thought, content and tool calls of a turn."""
    thought, calls = message.get("reasoning_content"), message.get("tool_calls")
    if thought:
        content = f"{THINK_OPEN}{thought}{THINK_CLOSE}{content}"
    if calls:
        content += orjson.dumps(calls).decode()
    return content
