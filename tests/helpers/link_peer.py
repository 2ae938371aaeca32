"""A worker at one end of a link, as a process of its own that a test can stop or kill.

    python -m tests.helpers.link_peer dial ENDPOINT RUN INCARNATION    (sends one message, holds)
    python -m tests.helpers.link_peer listen RUN INCARNATION           (prints its endpoint, holds)

Either end prints `ready` once it holds a channel, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys

from services.links import Frame, dial
from shared.messages import CompletionsFrom
from tests.helpers.link_ends import LIMITS, LINK, QUICK, dialer_identity, listening


async def _held() -> None:
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _dial(endpoint: str, run_id: str, incarnation: str) -> None:
    identity = dialer_identity(run_id, incarnation=incarnation)
    channel = await dial(
        LINK, endpoint, identity, limits=LIMITS, security=None, plane="auto", timeouts=QUICK
    )
    async with channel:
        big = bytes(range(256)) * 1024
        await channel.send(CompletionsFrom(seq=1), [Frame("big", "uint8", (len(big),), big)])
        await _held()


async def _listen(run_id: str) -> None:
    async with listening(run_id) as listener:
        print(listener.endpoint, flush=True)
        await listener.accept()
        await _held()


if __name__ == "__main__":
    if sys.argv[1] == "dial":
        asyncio.run(_dial(*sys.argv[2:]))
    else:
        asyncio.run(_listen(sys.argv[2]))
