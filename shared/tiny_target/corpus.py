"""The training text of the tiny target, as token ids in batches of similar length.

Data flow: seed -> problems of the `training` portion -> chat text, most of it with thinking ->
token ids -> batches. The same seed gives the same batches in the same order. No torch here.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from tokenizers import Tokenizer

from shared.tiny_target.problems import draw_problems
from shared.tiny_target.tokenizer import chat_text

THINKING_SHARE = 0.7
_BATCHES_PER_BUCKETING = 32


def training_texts(seed: int, count: int) -> list[str]:
    """`count` conversations of one question and its gold answer; kinds equally often."""
    rng = random.Random(f"tiny target corpus {seed}")
    texts = []
    for problem in itertools.islice(draw_problems(seed, portion="training"), count):
        thinking = rng.random() < THINKING_SHARE
        texts.append(
            chat_text(problem.question, problem.gold(thinking=thinking), thinking=thinking)
        )
    return texts


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of every text; control tokens in the text become single ids."""
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def batches(
    examples: list[list[int]], *, batch_size: int, num_batches: int, seed: int
) -> Iterator[list[list[int]]]:
    """`num_batches` batches of `batch_size` examples, in shuffled passes over all examples.

    Within a stretch of some batches the examples are grouped by length, so that little is padded,
    and the batches of the stretch are shuffled. Examples that do not fill the last batch of a pass
    begin the next pass.

    Raises:
        ValueError: if there are fewer examples than a batch holds.
    """
    if len(examples) < batch_size:
        raise ValueError(f"{len(examples)} examples do not fill a batch of {batch_size}")
    rng = random.Random(f"tiny target order {seed}")
    waiting: list[list[int]] = []
    given = 0
    while given < num_batches:
        order = list(range(len(examples)))
        rng.shuffle(order)
        waiting += [examples[i] for i in order]
        while len(waiting) >= batch_size and given < num_batches:
            full = min(len(waiting) // batch_size, _BATCHES_PER_BUCKETING)
            stretch = sorted(waiting[: full * batch_size], key=len)
            del waiting[: full * batch_size]
            groups = [stretch[i * batch_size : (i + 1) * batch_size] for i in range(full)]
            rng.shuffle(groups)
            for group in groups[: num_batches - given]:
                yield group
                given += 1
