"""Completions of a run as the generator's loops see them: pending prompts in, log out.

    engine loops --add / fail / finish--> CompletionStore --read / grown--> link `completions`

Disk work happens in a thread. Invariant: readers are told of a completion only after it is on the
disk, and progress.json is brought up to date before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from services.data.prompts import PromptRow
from services.data.spool import PromptRows
from services.generation import Answer
from shared.errors import MeshError
from shared.messages import Completion
from workers.generator.books import Failure, FailureBook, read_books, write_books
from workers.generator.log import CompletionLog
from workers.runtime import WorkerContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Generated:
    """An engine's answer to one prompt; `seed` None for greedy answers."""

    row: PromptRow
    prompt_ids: list[int]
    answer: Answer
    text: str
    seed: int | None


class CompletionStore:
    """Log and books of one run, and who waits for them to grow."""

    def __init__(self, context: WorkerContext, training: PromptRows) -> None:
        section = context.config.generator
        self.training = training
        self._context = context
        self._folder = context.folder
        self._thinking = section.thinking
        self._sampling: dict[str, float | int | str | bool | None] = {
            "engine": section.engine,
            "temperature": section.temperature,
            "top_p": section.top_p,
            "max_new_tokens": section.max_new_tokens,
        }
        books = read_books(context.folder)
        self._log = CompletionLog(
            context.folder, section.batch_completions, at_least=books.num_completions
        )
        self._failures = FailureBook(context.folder)
        self._lock = asyncio.Lock()
        self._grown = asyncio.Event()
        self._num_failed = len(self._failures.final_indices() - self._log.done)
        self.finished = books.finished
        if self._log.num_cut_bytes:
            logger.warning(
                "cut a half-written line of %d bytes off the completions log; its prompt is "
                "generated again",
                self._log.num_cut_bytes,
            )
        self._write_books()

    def close(self) -> None:
        """Let another generator have the log."""
        self._log.close()

    @property
    def next_seq(self) -> int:
        return self._log.next_seq

    @property
    def num_prompts(self) -> int:
        return len(self.training)

    @property
    def num_failed(self) -> int:
        return self._num_failed

    def is_done(self, row: PromptRow) -> bool:
        """Whether the log holds the prompt's completion."""
        return row.index in self._log.done

    def pending(self) -> PromptRows:
        """Prompts that neither have a completion nor are given up, in order."""
        return self.training.without(self._log.done | self._failures.final_indices())

    def untried(self, rows: PromptRows) -> PromptRows:
        """Those of `rows` that no attempt has failed at."""
        return rows.without(self._failures.latest.keys())

    def num_attempts(self, row: PromptRow) -> int:
        """Failed attempts at the prompt so far."""
        return self._failures.attempts(row.index)

    async def add(self, items: Sequence[Generated]) -> None:
        """Append completions in this order, durably, and tell the readers."""
        if not items:
            return
        async with self._lock:
            first = self._log.next_seq
            completions = [self._completion(first + at, item) for at, item in enumerate(items)]
            appended = await asyncio.to_thread(self._log.append, completions)
            await asyncio.to_thread(self._write_books)
        self._context.meter.count_tokens(sum(len(item.answer.output_ids) for item in items))
        for path in appended.closed_files:
            self._context.announce_file(path, "completions")
        self._wake()

    async def fail(self, row: PromptRow, error: MeshError, *, final: bool) -> None:
        """Note a failed attempt with its cause; a final one is not tried again."""
        failure = Failure(
            prompt_index=row.index,
            prompt_sha256=row.sha256,
            slug=error.slug,
            cause=error.detail[:2000],
            attempt=self.num_attempts(row) + 1,
            final=final,
        )
        logger.warning(
            "prompt %d (%s, %s) failed%s: %s",
            row.index,
            row.place.file,
            row.place,
            " and is given up" if final else ", it is tried again at the end",
            failure.cause,
        )
        async with self._lock:
            await asyncio.to_thread(self._failures.add, failure)
            self._num_failed = len(self._failures.final_indices() - self._log.done)
            await asyncio.to_thread(self._write_books)
        self._wake()

    async def finish(self) -> None:
        """Nothing more will be appended, now or after a restart."""
        async with self._lock:
            self.finished = True
            await asyncio.to_thread(self._write_books)
        tail = self._log.num_files
        if tail and self._log.next_seq % self._context.config.generator.batch_completions:
            self._context.announce_file(self._folder.completions_batch(tail - 1), "completions")
        for name in ("progress.json", "done_index"):
            self._context.announce_file(self._folder.completions / name, "metadata")
        self._wake()

    async def read(self, seq: int, limit: int) -> list[Completion]:
        """Up to `limit` completions from `seq` on."""
        async with self._lock:
            return await asyncio.to_thread(self._log.read, seq, limit)

    async def wait_beyond(self, seq: int) -> None:
        """Until the log is longer than `seq`, or finished."""
        while self._log.next_seq <= seq and not self.finished:
            grown = self._grown
            await grown.wait()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def _completion(self, seq: int, item: Generated) -> Completion:
        return Completion(
            seq=seq,
            prompt_index=item.row.index,
            prompt_sha256=item.row.sha256,
            occurrence=item.row.occurrence,
            prompt_ids=item.prompt_ids,
            output_ids=item.answer.output_ids,
            finish_reason=item.answer.finish_reason,
            thinking=self._thinking,
            text=item.text,
            sampling={
                **self._sampling,
                "seed": item.seed,
                **({"retokenised": True} if item.answer.retokenised else {}),
            },
            problem_kind=item.row.kind,
        )

    def _write_books(self) -> None:
        write_books(
            self._folder,
            self._log,
            num_prompts=self.num_prompts,
            num_failed=self._num_failed,
            finished=self.finished,
        )
        self._context.progress.update(
            completions_done=self._log.next_seq,
            completions_failed=self._num_failed,
            completions_total=self.num_prompts,
        )
