"""The SGLang client against server processes that speak the native interface, also badly."""

import asyncio
import socket

import pytest

from services.data.tokenizer import TargetTokenizer
from services.embedded_engine import EmbeddedEngine
from services.generation import SamplingParameters
from services.servers import (
    CallRefused,
    PromptRefused,
    ServerPool,
    ServerUnavailable,
    SglangServer,
)
from services.servers.names import same_model
from shared.config.servers import SglangSection
from shared.dflash.target_shape import TargetShape
from shared.errors import UpstreamError, UpstreamTimeout, WrongModelError
from shared.states import Role
from shared.tiny_target import model_folder
from tests.helpers.completion_logs import read_log
from tests.helpers.mesh_contexts import Workplace, tiny_config
from tests.helpers.server_peers import first_error, run_generator
from tests.helpers.server_peers import sglang_peer as peer
from workers.generator import worker as generator_worker
from workers.generator.books import FailureBook

FOLDER = model_folder()
SECTION = SglangSection(
    request_timeout_s=50, connect_timeout_s=5, max_retries=2, breaker_backoff_s=0.05
)
VOCABULARY = TargetShape.read(FOLDER).vocab_size


def sglang_pool(urls, section):
    return ServerPool([SglangServer(url, section) for url in urls], section, vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def good():
    with peer() as url:
        yield url


@pytest.fixture(scope="module")
def prompt():
    tokenizer = TargetTokenizer.load(FOLDER)
    ids = tokenizer.render([{"role": "user", "content": "What is 12 + 7?"}], thinking=True)
    return ids, SamplingParameters(200, 0.0, 1.0, tokenizer.eos_ids)


async def test_ids_go_in_and_the_servers_own_ids_come_out(good, prompt):
    ids, sampling = prompt
    expected = EmbeddedEngine.load(FOLDER, dtype="float32", device="cpu", num_threads=1).generate(
        [ids], [1], sampling
    )
    async with SglangServer(good, SECTION) as client:
        await client.check(FOLDER)
        assert await client.healthy()
        assert await client.generate(ids, 1, sampling) == expected[0]
    assert expected[0].finish_reason == "stop" and expected[0].output_ids[-1] in sampling.eos_ids


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (("--fault", "get-404"), UpstreamError, r"answers 404.*no SGLang server at .*sglang\.urls"),
        (("--fault", "get-500"), UpstreamError, "answers 500"),
        (("--served-as", "/models/Other-7B"), WrongModelError, "serves '/models/Other-7B'.*tiny"),
    ],
)
async def test_a_server_that_is_not_the_right_one(options, error, message):
    with peer(*options) as url:
        async with SglangServer(url, SECTION) as client:
            with pytest.raises(error, match=message):
                await client.check(FOLDER)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("400", PromptRefused, "answers 400"),
        ("404", CallRefused, "answers 404"),
        ("500", UpstreamError, "answers 500.*made to answer 500"),
        ("disconnect", ServerUnavailable, "broke off"),
        ("hang", UpstreamTimeout, "did not answer in time"),
        ("no-ids", UpstreamError, "without output_ids"),
        ("other-ids", WrongModelError, "runs another model"),
    ],
)
async def test_failed_requests_say_what_happened(fault, error, message, prompt):
    timeout_s = 2.0 if fault == "hang" else 30.0
    section = SECTION.model_copy(update={"request_timeout_s": timeout_s, "max_retries": 1})
    with peer("--scripted", "--fault", fault) as url:
        async with sglang_pool([url], section) as pool:
            await pool.check(FOLDER)
            with pytest.raises(error, match=message) as caught:
                await pool.generate(prompt[0], 1, prompt[1])
    assert url in str(caught.value)


async def test_a_hanging_server_is_noticed_when_it_is_checked():
    section = SECTION.model_copy(update={"request_timeout_s": 1.0})
    with peer("--fault", "get-hang") as url:
        async with SglangServer(url, section) as client:
            with pytest.raises(UpstreamTimeout, match="did not answer in time"):
                await client.check(FOLDER)


async def test_a_refused_connection_and_a_bad_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    async with SglangServer(url, SECTION) as client:
        assert not await client.healthy()
        with pytest.raises(UpstreamError, match="cannot be reached"):
            await client.check(FOLDER)
    async with SglangServer("ftp://example", SECTION) as client:
        with pytest.raises(UpstreamError, match=r"not a usable address|cannot be reached"):
            await client.check(FOLDER)


async def test_a_failure_that_passes_is_tried_again(prompt):
    with peer("--scripted", "--fault", "first-500") as url:
        async with sglang_pool([url], SECTION) as pool:
            assert (await pool.generate(prompt[0], 1, prompt[1])).output_ids


async def test_requests_go_to_servers_that_answer(good, prompt):
    with peer("--fault", "disconnect") as broken:
        async with sglang_pool([broken, good], SECTION) as pool:
            answers = [await pool.generate(prompt[0], 1, prompt[1]) for _ in range(4)]
    assert all(answer == answers[0] for answer in answers)


def test_models_are_compared_by_path_and_by_name(tmp_path):
    folder = tmp_path / "Qwen3-8B"
    folder.mkdir()
    assert same_model(str(folder), folder)
    assert same_model("Qwen/Qwen3-8B", folder) and same_model("/models/qwen3-8b/", folder)
    snapshot = "/cache/models--Qwen--Qwen3-8B/snapshots/abc123"
    assert same_model(snapshot, folder)
    assert not same_model("Qwen/Qwen3-4B", folder) and not same_model("/", folder)


def served_config(url, **overrides):
    options = {
        "generator.engine": "sglang",
        "generator.sglang.urls": [url],
        "generator.sglang.max_retries": 0,
        "generator.sglang.breaker_backoff_s": 0.02,
        "generator.concurrency": 4,
        "data.num_prompts": 12,
    }
    return tiny_config({**options, **overrides})


async def test_a_run_generated_by_a_server(tmp_path, good):
    place = Workplace(tmp_path, served_config(good))
    context, task = await run_generator(place)
    assert task.exception() is None
    log = read_log(context.folder)
    assert sorted(one.prompt_index for one in log) == sorted(x.prompt_index for x in log)
    assert (
        len({one.prompt_index for one in log}) == len(log) == context.progress["completions_total"]
    )
    assert all(one.sampling["engine"] == "sglang" and one.text for one in log)
    again, task = await run_generator(place)  # nothing is left to do, no server is needed
    assert task.exception() is None and again.progress["completions_done"] == len(log)


async def test_a_drained_generator_goes_on_where_it_was(tmp_path):
    with peer("--scripted", "--delay-s", "0.05") as url:
        config = served_config(url, **{"data.num_prompts": 40})
        place = Workplace(tmp_path, config)
        context = place.context(Role.GENERATOR)
        task = asyncio.create_task(generator_worker.main(context))
        await place.until(lambda: context.progress.get("completions_done", 0) >= 4 or task.done())
        context.drain()
        await asyncio.wait([task], timeout=30)
        assert task.exception() is None
        done = len(read_log(context.folder))
        # what was under way has arrived, nothing was begun
        assert 4 <= done <= 16 < context.progress["completions_total"]
        context, task = await run_generator(place)
    assert task.exception() is None
    log = read_log(context.folder)
    total = context.progress["completions_total"]
    assert len(log) == total == len({one.prompt_index for one in log})


async def test_prompts_that_the_server_refuses_are_kept_apart(tmp_path):
    with peer("--scripted", "--fault", "refuse-some") as url:
        place = Workplace(tmp_path, served_config(url))
        context, task = await run_generator(place)
    assert task.exception() is None
    failures = FailureBook(context.folder).latest.values()
    assert len(failures) == context.progress["completions_failed"] == 2
    assert all(one.final and "answers 400" in one.cause for one in failures)
    done = {one.prompt_index for one in read_log(context.folder)}
    assert len(done) == context.progress["completions_total"] - 2
    assert done.isdisjoint(one.prompt_index for one in failures)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("500", UpstreamError),
        ("hang", UpstreamTimeout),
        ("400", PromptRefused),
        ("404", CallRefused),
    ],
)
async def test_a_server_that_fails_every_prompt_ends_the_worker(tmp_path, fault, error):
    with peer("--fault", fault) as url:
        config = served_config(url, **{"generator.sglang.request_timeout_s": 1.0})
        _, task = await run_generator(Workplace(tmp_path, config))
    assert type(first_error(task)) is error


async def test_a_server_with_another_model_ends_the_worker(tmp_path):
    with peer("--served-as", "Other-7B") as url:
        _, task = await run_generator(Workplace(tmp_path, served_config(url)))
    error = first_error(task)
    assert isinstance(error, WrongModelError) and "Other-7B" in str(error)
