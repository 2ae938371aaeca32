"""The pool: balance, retries where they help, members that come and go, and giving up."""

import asyncio

import pytest

from services.generation import Answer, SamplingParameters
from services.servers import (
    NotServed,
    PromptRefused,
    ServerFigures,
    ServerPool,
    ServersGone,
    ServerUnavailable,
)
from services.servers.breaker import Circuit
from shared.config.servers import ServersSection
from shared.errors import UpstreamError, UpstreamTimeout, WrongModelError

SAMPLING = SamplingParameters(10, 0.0, 1.0, (2,))
SECTION = ServersSection(
    max_retries=2, breaker_backoff_s=0.01, breaker_max_backoff_s=0.02, all_down_limit_s=5.0
)


class Scripted:
    """A server that does what `acts` say in turn, the last one for ever; None answers."""

    def __init__(self, *acts, name="a"):
        self.url, self.acts = f"http://{name}", list(acts) or [None]
        self.num_calls = self.num_at_once = self.most_at_once = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_closed = False

    async def generate(self, prompt_ids, seed, sampling, chat=None):
        self.num_calls += 1
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
        finally:
            self.num_at_once -= 1
        if act is not None:
            raise act
        return Answer([seed, 2], "stop")

    async def healthy(self):
        return True

    async def check(self, target_folder):
        return None

    async def figures(self):
        return ServerFigures()

    async def close(self):
        self.is_closed = True


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def pool(*servers, section=SECTION, **options):
    return ServerPool(servers, section, vocab_size=100, **options)


def ask(one, seed=1, num_tokens=3):
    return one.generate([5] * num_tokens, seed, SAMPLING)


async def test_requests_go_where_fewest_tokens_are_outstanding():
    first, second = Scripted(), Scripted(name="b")
    first.gate.clear()
    second.gate.clear()
    one = pool(first, second)
    tasks = [asyncio.create_task(ask(one, num_tokens=50))]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(ask(one)) for _ in range(4)]
    for _ in range(3):
        await asyncio.sleep(0)
    # 60 tokens are with the first, 13 each with the second: its fifth would be the first's turn
    assert (first.num_at_once, second.num_at_once) == (1, 4)
    assert [member.outstanding_tokens for member in one.members] == [60, 52]
    first.gate.set()
    second.gate.set()
    await asyncio.gather(*tasks)
    assert [member.outstanding_tokens for member in one.members] == [0, 0]
    await one.close()
    assert first.is_closed and second.is_closed


async def test_a_retry_goes_to_another_server():
    broken, good = Scripted(UpstreamError("broke")), Scripted(name="b")
    one = pool(broken, good)
    assert (await ask(one)).output_ids == [1, 2]
    assert (broken.num_calls, good.num_calls) == (1, 1)


@pytest.mark.parametrize(
    ("error", "num_calls"),
    [
        (PromptRefused("no"), 1),
        (WrongModelError("other"), 1),
        (UpstreamTimeout("slow"), 1),
        (UpstreamError("500"), 3),
        (ServerUnavailable("broke off"), 3),
    ],
)
async def test_retries_are_made_only_where_they_help(error, num_calls):
    server = Scripted(error)
    with pytest.raises(type(error)) as caught:
        await ask(pool(server))
    assert caught.value is error and server.num_calls == num_calls


async def test_being_turned_away_uses_up_no_attempt():
    server = Scripted(*[NotServed("away")] * 9, None)
    assert (await ask(pool(server))).output_ids == [1, 2]
    assert server.num_calls == 10


async def test_one_probe_alone_finds_out_that_a_server_is_back():
    server = Scripted(*[NotServed("away")] * 3, None)
    one = pool(server)
    first = asyncio.create_task(ask(one))
    await until(lambda: one.members[0].breaker.state is not Circuit.CLOSED)
    server.gate.clear()
    tasks = [first, *(asyncio.create_task(ask(one, seed)) for seed in range(20))]
    await asyncio.sleep(0.05)
    assert server.num_at_once == 1 and server.num_calls == 4
    server.gate.set()
    await asyncio.gather(*tasks)
    assert server.most_at_once > 1 and server.num_calls == 24
    assert one.members[0].breaker.state is Circuit.CLOSED


async def test_a_cancelled_probe_does_not_block_the_server_for_ever():
    server = Scripted(*[NotServed("away")] * 3, None)
    one = pool(server)
    first = asyncio.create_task(ask(one))
    await until(lambda: one.members[0].breaker.state is not Circuit.CLOSED)
    server.gate.clear()
    await until(lambda: one.members[0].breaker.state is Circuit.HALF_OPEN)
    first.cancel()
    second = asyncio.create_task(ask(one))
    await asyncio.gather(first, return_exceptions=True)
    server.gate.set()
    async with asyncio.timeout(2):
        assert (await second).output_ids == [1, 2]


async def test_all_servers_down_for_too_long_ends_with_the_last_cause():
    section = SECTION.model_copy(update={"all_down_limit_s": 0.1})
    one = pool(Scripted(NotServed("nobody at home")), section=section)
    answers = await asyncio.gather(*(ask(one) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, ServersGone) for answer in answers)
    assert "all_down_limit_s" in str(answers[0]) and "nobody at home" in str(answers[0])


async def test_members_come_and_go_while_requests_wait():
    section = SECTION.model_copy(update={"all_down_limit_s": 0.1})
    one = pool(section=section, patience_s=5.0)
    waiting = asyncio.create_task(ask(one))
    await asyncio.sleep(0.15)
    assert not waiting.done()
    first, second = Scripted(), Scripted(name="b")
    one.add(first)
    await waiting
    one.add(second)
    one.remove(first)
    await asyncio.gather(*(ask(one) for _ in range(5)))
    assert (first.num_calls, second.num_calls) == (1, 5)


@pytest.mark.parametrize("ids", [[1, 100, 3], [1, -1], []])
async def test_ids_outside_the_vocabulary_are_never_sent(ids):
    server = Scripted()
    with pytest.raises(PromptRefused, match=r"vocabulary of 100|no tokens"):
        await pool(server).generate(ids, 1, SAMPLING)
    assert server.num_calls == 0
    await pool(server).generate([0, 99], 1, SAMPLING)
