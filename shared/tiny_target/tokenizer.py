"""The tokenizer of the tiny target: byte-level BPE with single digits, and the chat template.

Every digit and every line break is a token of its own, so a prompt that ends with line breaks has
the same tokens whether it is encoded alone or together with its answer. Any text can be encoded,
since all 256 bytes are in the vocabulary. The control tokens are atomic; `<think>` and `</think>`
are atomic but not special, so they stay in text that is decoded without special tokens.

The template writes ChatML turns. With `enable_thinking` (the default) the prompt ends behind the
assistant's header and the model opens its thinking itself; without it the prompt already holds an
empty thinking block. Invariant: a prompt with its answer appended renders to exactly the text of
the conversation that contains the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
END_OF_TEXT, MASK = "<|endoftext|>", "<|mask|>"
CONTROL_TOKENS = (END_OF_TEXT, IM_START, IM_END, MASK)
THINK_TOKENS = ("<think>", "</think>")

CHAT_TEMPLATE = """\
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set thought = message.reasoning_content | default('', true) | trim %}
        {%- set reply = message.content | default('', true) %}
        {%- if '</think>' in reply %}
            {%- set thought = reply.split('</think>')[0].split('<think>')[-1] | trim %}
            {%- set reply = reply.split('</think>')[-1] %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last_user %}
            {{- '<think>\\n' + (thought + '\\n' if thought else '\\n') + '</think>\\n\\n' }}
        {%- endif %}
        {{- reply | trim + '<|im_end|>\\n' }}
    {%- elif message.role in ('system', 'user') %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
    {%- else %}
        {{- raise_exception('unknown role ' + message.role + ': use system, user or assistant') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of `vocab_size` entries learned from `texts`; control tokens come first.

    Raises:
        ValueError: if the vocabulary cannot hold the bytes and the control tokens.
    """
    fixed = len(CONTROL_TOKENS) + len(THINK_TOKENS) + 256
    if vocab_size < fixed:
        raise ValueError(
            f"vocab_size {vocab_size} is too small: bytes and control tokens need {fixed}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(THINK_TOKENS),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in THINK_TOKENS]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, model_max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja for AutoTokenizer.

    The class is named PreTrainedTokenizerFast, which takes tokenizer.json as it is: a class of a
    model family would put its own pre-tokenizer in place of ours and stop splitting digits.
    """
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model_max_length,
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "mask_token": MASK,
        "additional_special_tokens": [IM_START],
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def chat_text(question: str, reply: str = "", *, thinking: bool) -> str:
    """The text of one question and its answer as the template renders it, to train on.

    `reply` is the assistant's text as generated: with its think block if `thinking`, else without.
    An empty reply leaves the prompt alone.
    """
    prompt = f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n"
    if not thinking:
        prompt += "<think>\n\n</think>\n\n"
    return f"{prompt}{reply}{IM_END}\n" if reply else prompt
