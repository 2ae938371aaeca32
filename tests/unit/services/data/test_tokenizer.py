import json
import shutil

import pytest

from services.data.tokenizer import TargetTokenizer
from shared.errors import DataError, TargetModelError
from shared.tiny_target import model_folder

QUESTION = [{"role": "user", "content": "What is 2 + 2?"}]


@pytest.fixture(scope="module")
def tokenizer():
    return TargetTokenizer.load(model_folder())


def test_rendering_follows_the_thinking_mode(tokenizer):
    plain = tokenizer.render(QUESTION, thinking=None)
    asked = tokenizer.render(QUESTION, thinking=True)
    without = tokenizer.render(QUESTION, thinking=False)
    assert plain == asked and without[: len(asked)] == asked
    assert tokenizer.decode(without).endswith("<think>\n\n</think>\n\n")
    assert "What is 2 + 2?" in tokenizer.decode(asked)
    assert tokenizer.decode(asked).endswith("<|im_start|>assistant\n")


def test_special_tokens_stay_in_decoded_text_and_end_ids_are_known(tokenizer):
    texts = [tokenizer.decode([one]) for one in tokenizer.eos_ids]
    assert "<|im_end|>" in texts
    assert max(tokenizer.eos_ids) < tokenizer.vocab_size


def test_a_conversation_that_the_template_refuses_is_a_data_error(tokenizer):
    with pytest.raises(DataError, match="template refuses the conversation: unknown role tool"):
        tokenizer.render([{"role": "tool", "content": "4"}], thinking=None)


def test_a_tokenizer_of_another_model_is_noticed(tmp_path):
    folder = shutil.copytree(model_folder(), tmp_path / "target")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))
    with pytest.raises(TargetModelError, match="do not belong together"):
        TargetTokenizer.load(folder).render(QUESTION, thinking=None)


def test_a_target_without_an_end_token_is_refused(tmp_path):
    folder = shutil.copytree(model_folder(), tmp_path / "target")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": None}))
    (folder / "generation_config.json").unlink()
    with pytest.raises(TargetModelError, match="names no end-of-text token"):
        TargetTokenizer.load(folder)
