"""The training text of the tiny target, as token ids, and the order in which it is read.

Data flow: seed -> problems of the `training` portion -> chat prompt and gold reply, most of them
with thinking -> `Example` -> batches of example numbers, similar lengths together. The same seed
gives the same examples in the same order. No torch here.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from shared.tiny_target.problems import draw_problems
from shared.tiny_target.tokenizer import chat_text

THINKING_SHARE = 0.8
_BATCHES_PER_STRETCH = 32


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation: token ids, of which the first `num_prompt_tokens` are given, not learned.

    The empty think block of a conversation without thinking belongs to the prompt. Learning it
    would teach the model to skip its thinking when it was asked to think.
    """

    ids: list[int]
    num_prompt_tokens: int


def training_texts(seed: int, count: int) -> list[tuple[str, str]]:
    """`count` pairs of a prompt and the whole conversation; kinds equally often."""
    rng = random.Random(f"tiny target corpus {seed}")
    texts = []
    for problem in itertools.islice(draw_problems(seed, portion="training"), count):
        thinking = rng.random() < THINKING_SHARE
        prompt = chat_text(problem.question, thinking=thinking)
        reply = problem.gold(thinking=thinking)
        texts.append((prompt, chat_text(problem.question, reply, thinking=thinking)))
    return texts


def encode_examples(tokenizer: Tokenizer, texts: Sequence[tuple[str, str]]) -> list[Example]:
    """An example of every pair that `training_texts` gave."""
    prompts = tokenizer.encode_batch_fast([prompt for prompt, _ in texts])
    wholes = tokenizer.encode_batch_fast([whole for _, whole in texts])
    return [
        Example(whole.ids, len(prompt.ids)) for prompt, whole in zip(prompts, wholes, strict=True)
    ]


def batches(
    lengths: Sequence[int], *, batch_size: int, num_batches: int, seed: int
) -> Iterator[list[int]]:
    """`num_batches` batches of `batch_size` example numbers, in shuffled passes over all examples.

    Within a stretch of some batches the examples are grouped by length, so that little is padded,
    and the batches of the stretch are shuffled. Examples that do not fill the last batch of a pass
    begin the next pass.

    Raises:
        ValueError: if there are fewer examples than a batch holds.
    """
    if len(lengths) < batch_size:
        raise ValueError(f"{len(lengths)} examples do not fill a batch of {batch_size}")
    rng = random.Random(f"tiny target order {seed}")
    waiting: list[int] = []
    given = 0
    while given < num_batches:
        order = list(range(len(lengths)))
        rng.shuffle(order)
        waiting += order
        while len(waiting) >= batch_size and given < num_batches:
            full = min(len(waiting) // batch_size, _BATCHES_PER_STRETCH)
            stretch = sorted(waiting[: full * batch_size], key=lambda number: lengths[number])
            del waiting[: full * batch_size]
            groups = [stretch[i * batch_size : (i + 1) * batch_size] for i in range(full)]
            rng.shuffle(groups)
            for group in groups[: num_batches - given]:
                yield group
                given += 1
