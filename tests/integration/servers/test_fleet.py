"""Servers that a run starts itself: started, watched, started again, stopped with it."""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys

import psutil
import pytest

from services.generation import SamplingParameters
from services.servers import ServerFleet, ServerPool
from services.servers.flags import plan_servers
from services.servers.launch import free_ports
from shared.config.servers import SglangSection
from shared.dflash.target_shape import TargetShape
from shared.errors import EnvironmentFault, UpstreamError, UpstreamTimeout
from shared.states import Role, WorkerState
from shared.tiny_target import model_folder
from tests.helpers.completion_logs import read_log
from tests.helpers.mesh_contexts import Workplace, tiny_config
from tests.helpers.server_peers import REPOSITORY, first_error, run_generator
from workers.generator import worker as generator_worker

FOLDER = model_folder()
SAMPLING = SamplingParameters(20, 0.0, 1.0, (2,))


@pytest.fixture
def interpreter(tmp_path):
    """Stands where the Python of an sglang environment would: `-m sglang.launch_server` runs the
    peer of these tests."""
    path = tmp_path / "python"
    path.write_text(
        f"#!/bin/sh\nshift 2\ncd {REPOSITORY} && PYTHONPATH={REPOSITORY} "
        f'exec {sys.executable} -m tests.helpers.sglang_peer --scripted "$@"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def fleet(section, tmp_path, count=1, tell=None):
    plans = plan_servers(section, [], free_ports(count))

    def log_path(number):
        return tmp_path / "logs" / f"sglang-{number}.log"

    return ServerFleet(section, FOLDER, plans, log_path, tell=tell or (lambda text: None))


def pool(section):
    vocab_size = TargetShape.read(FOLDER).vocab_size
    return ServerPool([], section, vocab_size=vocab_size, patience_s=50)


def servers_below(pid=None):
    """The peers that are children of children of this process."""
    found = []
    for one in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            words = one.cmdline()
            if "tests.helpers.sglang_peer" in words and "services.servers.keeper" not in words:
                found.append(one)
    return found


async def test_servers_are_started_answer_and_are_stopped(tmp_path, interpreter):
    section = SglangSection(python=str(interpreter), num_servers=2, startup_s=50)
    async with fleet(section, tmp_path, 2) as two, pool(section) as one:
        keeping = asyncio.create_task(two.run(one))
        answers = await asyncio.gather(*(one.generate([7, 8], at, SAMPLING) for at in range(6)))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert not one.members
    assert all(answer.output_ids == [8, 7, 2] for answer in answers)
    for number, process in enumerate(two.processes):
        assert "ready" in (tmp_path / "logs" / f"sglang-{number}.log").read_text()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", process.plan.port)) != 0


async def test_a_server_that_does_not_start_says_why(tmp_path, interpreter):
    section = SglangSection(python=str(interpreter), args=["--fault", "startup"], startup_s=50)
    with pytest.raises(UpstreamError, match=r"status 1(.|\n)*CUDA out of memory"):
        async with fleet(section, tmp_path):
            pass
    section = SglangSection(python=str(interpreter), args=["--fault", "get-500"], startup_s=2)
    with pytest.raises(UpstreamTimeout, match=r"generator\.sglang\.startup_s"):
        async with fleet(section, tmp_path):
            pass
    assert not servers_below()
    section = SglangSection(python=str(tmp_path / "none"))
    with pytest.raises(EnvironmentFault, match=r"generator\.sglang\.python"):
        async with fleet(section, tmp_path):
            pass


async def test_one_of_two_killed_in_the_middle_loses_and_doubles_nothing(tmp_path, interpreter):
    config = tiny_config(
        {
            "generator.engine": "sglang",
            "generator.sglang.python": str(interpreter),
            "generator.sglang.num_servers": 2,
            "generator.sglang.args": ["--delay-s", "0.05"],
            "generator.sglang.breaker_backoff_s": 0.05,
            "generator.concurrency": 8,
            "data.num_prompts": 150,
        }
    )
    place = Workplace(tmp_path, config)
    context = place.context(Role.GENERATOR)
    task = asyncio.create_task(generator_worker.main(context))
    try:
        await place.until(lambda: context.progress.get("completions_done", 0) >= 20 or task.done())
        killed, other = servers_below()
        killed.kill()
        await place.until(
            lambda: task.done() or {other} < {*servers_below()}  # the other one, and a new one
        )
        await place.until(lambda: context.state is WorkerState.FINISHED or task.done())
        requests = context.queues["requests"]()
        reported = dict(context.metrics)
    finally:
        context.drain()
        await asyncio.wait([task])
    assert task.exception() is None
    log = read_log(context.folder)
    total = context.progress["completions_total"]
    assert len(log) == total and len({one.prompt_index for one in log}) == total
    assert context.progress["completions_failed"] == 0
    assert (requests.name, requests.depth) == ("requests", 0) and requests.capacity >= 1
    assert reported["server_0_running"] == 7 and reported["server_0_tokens_per_s"] == 1234.5
    assert context.queues["server_0"]().depth == 10 and reported["server_restarts"] == 1
    assert not servers_below()


async def test_a_server_that_keeps_ending_is_given_up(tmp_path, interpreter):
    told = []
    section = SglangSection(
        python=str(interpreter),
        startup_s=20,
        max_restarts=1,
        breaker_backoff_s=0.01,
    )
    async with fleet(section, tmp_path, tell=told.append) as one, pool(section) as servers:
        keeping = asyncio.create_task(one.run(servers))
        for _ in range(2):
            async with asyncio.timeout(20):
                await servers.generate([7], 1, SAMPLING)
            for process in servers_below():
                process.kill()
            async with asyncio.timeout(20):
                while servers.members and not keeping.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await asyncio.wait([keeping], timeout=20)
    assert "given up after 1 restarts" in str(first_error(keeping))
    assert [text for text in told if "starts again" in text]


async def test_a_wrong_model_among_own_servers_ends_the_worker(tmp_path, interpreter):
    config = tiny_config(
        {
            "generator.engine": "sglang",
            "generator.sglang.python": str(interpreter),
            "generator.sglang.num_servers": 1,
            "generator.sglang.args": ["--served-as", "Other-7B"],
        }
    )
    _, task = await run_generator(Workplace(tmp_path, config))
    assert "Other-7B" in str(first_error(task)) and not servers_below()


def test_a_server_does_not_outlive_a_killed_generator():
    """The keeper's parent is killed; the command, which ignores nothing, goes with it."""
    code = (
        "import subprocess, sys, time; "
        "keeper = subprocess.Popen([sys.executable, '-m', 'services.servers.keeper', "
        "sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); "
        "time.sleep(600)'], stdin=subprocess.PIPE); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as parent:
        command = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs([command], timeout=20)
        assert not alive


def test_free_ports_are_free_and_different():
    ports = free_ports(3)
    assert len(set(ports)) == 3
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
