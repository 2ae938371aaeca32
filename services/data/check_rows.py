"""Rows of conversations as candidates for the gates, with a tokenizer or without one.

    JSONL lines -> messages -> ConversationBatcher -> CandidateBatch (words, or token ids)

A row has `messages` or `prompt`; unlike a prompt of a run it may end with an answer. The answer
that is judged is an assistant turn that is empty or whose thought is not closed, if there is one,
else the last. A row without an assistant turn is judged by its prompt alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer

from services.data.prompts import ROLES
from shared.errors import DataError
from shared.gates import CandidateBatch
from shared.gates.checks import THINK_CLOSE, THINK_OPEN
from shared.gates.ngrams import offsets_of
from shared.gates.sample import text_keys
from shared.gates.words import word_hashes

Messages = Sequence[Mapping[str, Any]]
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class ConversationBatcher:
    """Makes batches of conversations; `tokenizer` None counts words instead of tokens."""

    tokenizer: Tokenizer | None = None
    thinking: bool | None = None

    def batch(
        self, conversations: Sequence[Messages], seqs: Sequence[int], sources: Sequence[str]
    ) -> CandidateBatch:
        """Columns of the conversations; `sources` name them in a report, as file and line.

        DataError names source and field of a message that is none.
        """
        texts: list[str] = []
        is_answer: list[bool] = []
        answers: list[str | None] = []
        contents: list[str] = []
        for messages, source in zip(conversations, sources, strict=True):
            first = len(texts)
            own: list[str] = []
            for at, message in enumerate(messages):
                text = _turn_text(message, at, source)
                texts.append(text)
                is_answer.append(message["role"] == "assistant")
                if is_answer[-1]:
                    own.append(text)
            answers.append(_judged_answer(own))
            contents.append("\x1e".join(texts[first:]))
        num_turns = np.fromiter(map(len, conversations), np.int64, len(conversations))
        supervised = np.array(is_answer, bool)
        turns = offsets_of(num_turns)
        thinking = [self.thinking] * len(answers)
        if self.tokenizer is not None:
            encoded = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            rows = [one.ids for one in encoded]
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            total = int(lengths.sum())
            return CandidateBatch.of_tokens(
                seqs=seqs,
                ids=np.fromiter(itertools.chain.from_iterable(rows), np.int64, total),
                supervised=np.repeat(supervised, lengths),
                offsets=offsets_of(lengths)[turns],
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
            offsets=by_turn[turns],
            sizes=np.diff(offsets_of(characters)[turns]),
            content_keys=text_keys(contents),
            response_keys=text_keys([answer or "" for answer in answers]),
            texts=answers,
            prompt_sha256=[""] * len(answers),
            finish_reasons=["stop"] * len(answers),
            thinking=thinking,
            sources=sources,
        )


def messages_of_line(raw: bytes, source: str) -> Messages:
    """The conversation of a JSONL line; DataError with the source and what is wrong."""
    try:
        tree = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: not JSON ({error})") from error
    if not isinstance(tree, dict):
        raise DataError(f"{source}: a row must be a JSON object")
    messages, prompt = tree.get("messages"), tree.get("prompt")
    if messages is None and isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(messages, list) or not messages:
        raise DataError(
            f"{source}: neither 'messages' with at least one message nor 'prompt' with text"
        )
    return messages


def _judged_answer(answers: Sequence[str]) -> str | None:
    for text in answers:
        if not text.strip() or (THINK_OPEN in text and THINK_CLOSE not in text):
            return text
    return answers[-1] if answers else None


def _turn_text(message: Mapping[str, Any], at: int, source: str) -> str:
    """What a turn says: thought, content and tool calls."""
    try:
        role, content = message["role"], message.get("content")
    except (KeyError, TypeError, AttributeError):
        raise DataError(
            f"{source}: messages[{at}] must be an object with 'role' and 'content'"
        ) from None
    if role not in ROLES:
        raise DataError(
            f"{source}: messages[{at}].role is {role!r}; use one of {', '.join(ROLES)}"
        )
    if not isinstance(content, str):
        content = _joined_parts(content, f"{source}: messages[{at}].content")
    if role == "assistant":
        thought, calls = message.get("reasoning_content"), message.get("tool_calls")
        if thought:
            content = f"{THINK_OPEN}{thought}{THINK_CLOSE}{content}"
        if calls:
            content += msgspec.json.encode(calls).decode()
    return content


def _joined_parts(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise DataError(f"{where} must be text or a list of text parts")
