import itertools

import pytest

from shared.tiny_target.corpus import (
    THINKING_SHARE,
    batches,
    encode_examples,
    training_texts,
)
from shared.tiny_target.tokenizer import train_tokenizer


def test_texts_depend_on_the_seed_and_mostly_think():
    texts = training_texts(3, 400)
    assert texts == training_texts(3, 400)
    assert texts != training_texts(4, 400)
    share = sum("<think>\n\n</think>" not in whole for _, whole in texts) / 400
    assert abs(share - THINKING_SHARE) < 0.08


def test_the_empty_thought_belongs_to_the_prompt():
    for prompt, whole in training_texts(3, 100):
        assert whole.startswith(prompt)
        reply = whole[len(prompt) :]
        assert prompt.endswith("</think>\n\n") != reply.startswith("<think>\n")


def test_examples_split_where_the_prompt_ends():
    texts = training_texts(3, 200)
    tokenizer = train_tokenizer((whole for _, whole in texts), 400)
    for example, (prompt, whole) in zip(encode_examples(tokenizer, texts), texts, strict=True):
        head = example.ids[: example.num_prompt_tokens]
        assert tokenizer.decode(head, skip_special_tokens=False) == prompt
        assert tokenizer.decode(example.ids, skip_special_tokens=False) == whole


def test_a_pass_reads_every_example_once():
    lengths = [10 + number % 37 for number in range(640)]
    read = list(batches(lengths, batch_size=16, num_batches=80, seed=1))
    assert all(len(batch) == 16 for batch in read)
    for some in (read[:40], read[40:]):
        assert sorted(itertools.chain(*some)) == list(range(640))
    assert read == list(batches(lengths, batch_size=16, num_batches=80, seed=1))
    assert read[:40] != read[40:]


def test_a_batch_holds_similar_lengths():
    lengths = [number * 7919 % 200 for number in range(512)]
    for batch in batches(lengths, batch_size=16, num_batches=32, seed=1):
        found = [lengths[number] for number in batch]
        assert max(found) - min(found) <= 10


def test_too_few_examples_are_an_error():
    with pytest.raises(ValueError, match="do not fill a batch of 8"):
        next(batches([5, 5], batch_size=8, num_batches=1, seed=0))
