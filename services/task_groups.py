"""Jobs that stand or fall together, with one error to show for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from shared.errors import MeshError


async def run_together(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all to their end; the first failure cancels the others and is raised plainly."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for job in jobs:
                tasks.create_task(job)
    except BaseExceptionGroup as group:
        raise leading_error(group) from group


def leading_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The group's first error when all are MeshErrors, otherwise the whole group."""
    _, other = group.split(MeshError)
    first: BaseException = group
    while other is None and isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
