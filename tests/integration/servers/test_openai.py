"""The OpenAI client against server processes that differ the way real ones do."""

import json

import pytest

from services.data.tokenizer import TargetTokenizer
from services.generation import SamplingParameters
from services.servers import CallRefused, Chat, OpenaiServer, PromptRefused
from services.servers.texts import exact_text
from shared.config.servers import OpenaiSection
from shared.errors import UpstreamError, WrongModelError
from shared.states import Role
from shared.tiny_target import model_folder
from tests.helpers.completion_logs import read_log
from tests.helpers.mesh_contexts import Workplace, tiny_config
from tests.helpers.openai_peer import TEXT
from tests.helpers.server_peers import openai_peer, run_generator

FOLDER = model_folder()
CONVERSATION = [{"role": "user", "content": "What is 12 + 7?"}]


@pytest.fixture(scope="module")
def tokenizer():
    return TargetTokenizer.load(FOLDER)


def server(url, tokenizer, *, api_key=None, **fields):
    section = OpenaiSection(urls=[url], request_timeout_s=20, **fields)
    return OpenaiServer(url, section, tokenizer, api_key=api_key)


async def answer(one, tokenizer, *, max_new_tokens=200):
    ids = tokenizer.render(CONVERSATION, thinking=True)
    sampling = SamplingParameters(max_new_tokens, 0.7, 1.0, tokenizer.eos_ids)
    await one.check(FOLDER)
    return await one.generate(ids, 2**40 + 1, sampling, Chat(CONVERSATION, True))


@pytest.mark.parametrize(
    ("kind", "form", "retokenised"),
    [
        ("ids", "ids", False),
        ("ids-to-text", "ids", True),
        ("text", "text", True),
        ("chat", "chat", True),
    ],
)
async def test_every_kind_of_server_gives_the_same_ids(tokenizer, kind, form, retokenised):
    with openai_peer("--kind", kind) as url:
        async with server(url, tokenizer) as one:
            got = await answer(one, tokenizer)
            cut = await answer(one, tokenizer, max_new_tokens=5)
    assert one.form == form
    assert got.output_ids == [*tokenizer.encode(TEXT), tokenizer.eos_id]
    assert (got.finish_reason, got.retokenised) == ("stop", retokenised)
    assert cut.output_ids == tokenizer.encode(TEXT)[:5] and cut.finish_reason == "length"


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("reasoning", CallRefused, "splits the reasoning off.*reasoning parser"),
        ("drops", PromptRefused, "generated 5.. tokens, but its text has|leaves special tokens"),
        ("other", WrongModelError, "another model"),
    ],
)
async def test_answers_that_lack_a_part_are_refused(tokenizer, kind, error, message):
    with openai_peer("--kind", kind) as url:
        async with server(url, tokenizer) as one:
            with pytest.raises(error, match=message):
                await answer(one, tokenizer)


async def test_a_form_that_the_server_lacks(tokenizer):
    with openai_peer("--kind", "text") as url:
        async with server(url, tokenizer, prompt_form="chat") as one:
            with pytest.raises(UpstreamError, match=r"takes no prompt.*prompt_form.*chat:.*404"):
                await one.check(FOLDER)


async def test_the_model_must_be_listed(tokenizer):
    with openai_peer("--kind", "ids") as url:
        async with server(url, tokenizer, model="gpt-9") as one:
            with pytest.raises(WrongModelError, match=r"does not list.*'gpt-9'.*lists model"):
                await one.check(FOLDER)
        async with server(url, tokenizer) as one:
            with pytest.raises(WrongModelError, match=r"none of them called like.*openai\.model"):
                await one.check(FOLDER.parent)


async def test_the_key_is_sent_and_shown_nowhere(tokenizer):
    with openai_peer("--kind", "ids", "--key", "sk-secret-1") as url:
        async with server(url, tokenizer, api_key="sk-secret-1") as one:
            assert (await answer(one, tokenizer)).output_ids
        async with server(url, tokenizer, api_key="sk-wrong-22") as one:
            with pytest.raises(UpstreamError, match=r"401.*api_key_env") as caught:
                await one.check(FOLDER)
    assert "[redacted]" in str(caught.value) and "sk-wrong" not in str(caught.value)


async def test_a_run_generated_by_an_openai_server(tmp_path, monkeypatch):
    monkeypatch.setenv("PEER_PASS", "sk-secret-1")
    with openai_peer("--kind", "text", "--key", "sk-secret-1") as url:
        config = tiny_config(
            {
                "generator.engine": "openai",
                "generator.openai.urls": [url + "/v1/"],
                "generator.openai.api_key_env": "PEER_PASS",
                "data.num_prompts": 12,
            }
        )
        context, task = await run_generator(Workplace(tmp_path, config))
    assert task.exception() is None and context.role is Role.GENERATOR
    log = read_log(context.folder)
    assert len(log) == context.progress["completions_total"] > 0
    assert all(one.sampling["retokenised"] is True and one.text.startswith(TEXT) for one in log)
    assert all(one.sampling["engine"] == "openai" and one.finish_reason == "stop" for one in log)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"sk-secret" not in written


async def test_conversations_go_out_as_the_interface_has_them(tokenizer):
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    messages = [*CONVERSATION, {"role": "assistant", "content": "", "tool_calls": [call]}]
    tools = [{"type": "function", "function": {"name": "add"}}]
    sampling = SamplingParameters(200, 0.7, 1.0, tokenizer.eos_ids)
    with openai_peer("--kind", "chat") as url:
        async with server(url, tokenizer, extra_body={"echo_request": True}) as one:
            await one.check(FOLDER)
            got = await one.generate([1, 2], 5, sampling, Chat(messages, False, tools))
    body = json.loads(tokenizer.decode(got.output_ids[:-1]))
    sent = body["messages"][1]["tool_calls"][0]
    assert sent["type"] == "function" and sent["id"]
    assert sent["function"] == {"name": "add", "arguments": '{"a":1}'}
    assert body["tools"] == tools and body["chat_template_kwargs"] == {"enable_thinking": False}
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (200, 0.7, 5)


class Fronted:
    """A tokenizer that puts a token in front, as Llama's does."""

    vocab_size, eos_ids, eos_id = 1000, (2,), 2

    def encode(self, text, *, add_special_tokens=False):
        ids = [1] if add_special_tokens else []
        while text:
            if text.startswith("<s>"):
                ids, text = [*ids, 1], text[3:]
            else:
                ids, text = [*ids, ord(text[0])], text[1:]
        return ids

    def decode(self, ids):
        return "".join("<s>" if one == 1 else chr(one) for one in ids)


def test_what_a_server_puts_in_front_is_left_to_it():
    assert exact_text([1, 104, 105], Fronted()) == "hi"
    with pytest.raises(PromptRefused, match="cannot be sent as text"):
        exact_text([104, 105], Fronted())
