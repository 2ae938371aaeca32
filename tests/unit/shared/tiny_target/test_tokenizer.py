"""The shipped tokenizer and template: atomic pieces, and one rendering for training and serving."""

import subprocess
import sys

import jinja2
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from shared.tiny_target import make_problems, model_folder
from shared.tiny_target.tokenizer import (
    CONTROL_TOKENS,
    END_OF_TEXT,
    IM_END,
    MASK,
    THINK_TOKENS,
    chat_text,
    save_tokenizer,
    train_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(model_folder())


def rendered(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


def test_control_and_think_tokens_are_atomic(tokenizer):
    for token in (*CONTROL_TOKENS, *THINK_TOKENS):
        assert tokenizer.encode(token, add_special_tokens=False) == [
            tokenizer.convert_tokens_to_ids(token)
        ]
    roles = (tokenizer.eos_token, tokenizer.pad_token, tokenizer.mask_token)
    assert roles == (IM_END, END_OF_TEXT, MASK)


def test_think_tags_stay_in_text_without_special_tokens(tokenizer):
    ids = tokenizer.encode("<think>\nso\n</think>\n\n4.<|im_end|>", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>\nso\n</think>\n\n4."


def test_every_digit_and_line_break_is_a_token(tokenizer):
    pieces = tokenizer.convert_ids_to_tokens(
        tokenizer.encode("1024\n\n375", add_special_tokens=False)
    )
    assert pieces == ["1", "0", "2", "4", "Ċ", "Ċ", "3", "7", "5"]


def test_any_text_survives(tokenizer):
    text = "Größe: 5 €, 日本 🙂\tend  \n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("thinking", [True, False])
def test_the_model_was_trained_on_what_the_template_renders(tokenizer, thinking):
    for problem in make_problems(4, 40):
        messages = list(problem.messages)
        prompt = rendered(tokenizer, messages, add_generation_prompt=True, enable_thinking=thinking)
        assert prompt == chat_text(problem.question, thinking=thinking)
        reply = problem.gold(thinking=thinking)
        whole = rendered(tokenizer, [*messages, {"role": "assistant", "content": reply}])
        assert whole == chat_text(problem.question, reply, thinking=thinking)
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
        whole_ids = tokenizer.encode(whole, add_special_tokens=False)
        assert whole_ids[: len(prompt_ids)] == prompt_ids


def test_earlier_turns_lose_their_thoughts(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": "<think>\nfirst\n</think>\n\n2."},
        {"role": "user", "content": "And 2 + 2?"},
        {"role": "assistant", "content": "4.", "reasoning_content": "second"},
    ]
    text = rendered(tokenizer, messages)
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert "first" not in text
    assert text.endswith("<think>\nsecond\n</think>\n\n4.<|im_end|>\n")


def test_an_unknown_role_is_named(tokenizer):
    with pytest.raises(jinja2.TemplateError, match="unknown role tool"):
        rendered(tokenizer, [{"role": "tool", "content": "4"}])


def test_a_new_tokenizer_loads_with_its_template(tmp_path):
    made = train_tokenizer(["What is 1 + 2?", "1 + 2 = 3."], 300)
    save_tokenizer(made, tmp_path, model_max_length=77)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.model_max_length == 77
    assert loaded.encode("12 <think>", add_special_tokens=False) == made.encode("12 <think>").ids
    messages = [{"role": "user", "content": "2?"}]
    assert rendered(loaded, messages, add_generation_prompt=True) == chat_text("2?", thinking=True)


def test_a_vocabulary_without_room_for_bytes_is_an_error():
    with pytest.raises(ValueError, match="vocab_size 200 is too small"):
        train_tokenizer([], 200)


def test_the_mask_token_never_occurs_in_text():
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    mask = tokenizer.token_to_id(MASK)
    for problem in make_problems(4, 200):
        text = chat_text(problem.question, problem.gold(), thinking=True)
        assert mask not in tokenizer.encode(text).ids


def test_problems_need_no_torch():
    command = (
        "import sys, shared.tiny_target.corpus, shared.tiny_target.report; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", command], check=True, timeout=50)
