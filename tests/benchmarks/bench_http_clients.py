"""What generation by servers costs on the client's side, against a server that costs nothing.

    python -m tests.benchmarks.bench_http_clients [--requests 3000] [--at-once 256] [--tokens 500]

The server is another process that answers every POST at once with the same body of `--tokens` ids.
Rows: httpx and aiohttp alone; our client; our pool; the whole generator (chat template, request,
text, log on the disk, adaptive concurrency). CPU is of the client's process.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import orjson

from services.generation import SamplingParameters
from services.servers import ServerPool, SglangServer
from shared.config.servers import SglangSection
from shared.tiny_target import model_folder
from tests.helpers.mesh_contexts import Workplace, tiny_config
from tests.helpers.server_peers import REPOSITORY, run_generator

PROMPT = list(range(100, 300))
SAMPLING = SamplingParameters(500, 0.7, 1.0, (2,))
Ask = Callable[[], Awaitable[Any]]


async def _serve(num_tokens: int) -> None:
    ids = [*(5 + number % 400 for number in range(num_tokens - 1)), 2]
    finish = {"type": "stop", "matched": 2}
    answer = orjson.dumps({"text": "", "output_ids": ids, "meta_info": {"finish_reason": finish}})
    info = orjson.dumps({"model_path": str(model_folder())})

    def response(body: bytes) -> bytes:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        return head.encode() + b"\r\n\r\n" + body

    answers = {True: response(answer), False: response(info)}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        await reader.readexactly(int(line.partition(b":")[2]))
                writer.write(answers[head.startswith(b"POST")])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _time(name: str, ask: Ask, given: argparse.Namespace) -> None:
    left = iter(range(given.requests))

    async def one_after_the_other() -> None:
        for _ in left:
            await ask()

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one_after_the_other() for _ in range(given.at_once)))
    _show(name, given.requests, given.tokens, wall_s, cpu_s)


def _show(name: str, num_requests: int, num_tokens: int, wall_s: float, cpu_s: float) -> None:
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    million = num_requests * num_tokens / 1e6
    print(
        f"{name:<18}{num_requests / wall_s:>12.0f}"
        f"{num_requests * num_tokens / wall_s / 1e3:>10.0f}"
        f"{1e3 * cpu_s / num_requests:>16.3f}{cpu_s / million:>18.2f}"
    )


async def _clients(url: str, given: argparse.Namespace) -> None:
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 500, "temperature": 0.7},
        "stream": False,
    }
    limits = httpx.Limits(max_connections=given.at_once)
    async with httpx.AsyncClient(base_url=url, limits=limits, trust_env=False) as client:

        async def by_httpx() -> Any:
            return (await client.post("/generate", json=body)).json()

        await _time("httpx", by_httpx, given)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def by_aiohttp() -> Any:
            async with session.post(f"{url}/generate", data=orjson.dumps(body)) as response:
                return orjson.loads(await response.read())

        await _time("aiohttp", by_aiohttp, given)
    section = SglangSection(urls=[url])
    async with SglangServer(url, section) as server:
        await server.check(model_folder())
        await _time("SglangServer", lambda: server.generate(PROMPT, 1, SAMPLING), given)
    async with ServerPool([SglangServer(url, section)], section, vocab_size=512) as pool:
        await _time("ServerPool", lambda: pool.generate(PROMPT, 1, SAMPLING), given)


async def _generator(url: str, given: argparse.Namespace) -> None:
    config = tiny_config(
        {
            "generator.engine": "sglang",
            "generator.sglang.urls": [url],
            "generator.concurrency": given.at_once,
            "generator.batch_completions": 500,
            "data.num_prompts": given.requests,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        context, task = await run_generator(Workplace(Path(folder), config))
        await task
        num_requests = context.progress["completions_done"]
        _show("generator", num_requests, given.tokens, wall_s, cpu_s)
        print(f"{'':<18}limit at the end: {context.queues['requests']().capacity}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--at-once", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(_serve(given.tokens))
        return
    command = [sys.executable, "-m", __spec__.name, "--serve", "--tokens", str(given.tokens)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        try:
            print(
                f"{'client':<18}{'requests/s':>12}{'Ktok/s':>10}{'CPU ms/request':>16}"
                f"{'CPU s/Mtok':>18}"
            )
            asyncio.run(_clients(url, given))
            asyncio.run(_generator(url, given))
        finally:
            process.kill()


if __name__ == "__main__":
    main()
