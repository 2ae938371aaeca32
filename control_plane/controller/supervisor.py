"""Carries out what decisions.py decides for the workers of one run.

    Launch -> row -> process -> row knows the process        End, Kill -> row closed, memory freed
    Want   -> row (the next heartbeat's answer), a drain also by SIGTERM, which does not wait

Invariants: the row of an incarnation exists before its process, so a process is never unknown; a
row is closed after its process is dead or has got SIGKILL; only processes that a launcher of ours
started are ever signalled.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence

from control_plane.controller.decisions import Action, End, Kill, Launch, Want
from control_plane.controller.slots import Slot
from control_plane.store import Database, workers
from control_plane.store.tables import Worker
from services.launchers import Launcher, LaunchSpec, ProcessHandle
from services.links import remove_stale_segments
from shared.errors import EnvironmentFault
from shared.layout import RunFolder
from shared.states import DesiredState, Role, WorkerState

logger = logging.getLogger(__name__)


class Supervisor:
    """Launches and ends the workers of one run."""

    def __init__(
        self,
        run_id: str,
        folder: RunFolder,
        database: Database,
        launcher: Launcher,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run_id = run_id
        self._folder = folder
        self._database = database
        self._launcher = launcher
        self._clock = clock

    def find_dead(self, rows: Iterable[Worker]) -> dict[str, int | None]:
        """Ids of live rows whose process is gone, with the exit code where it is known."""
        dead: dict[str, int | None] = {}
        for row in rows:
            handle = handle_of(row)
            if row.ended_at is None and handle and not self._launcher.is_alive(handle):
                dead[row.id] = self._launcher.exit_code(handle)
        return dead

    async def carry_out(
        self, actions: Sequence[Action], rows: Sequence[Worker], *, wanted: bool
    ) -> None:
        """Do all of it, in order. `wanted`: a worker that is killed now was wanted."""
        by_id = {row.id: row for row in rows}
        for action in actions:
            match action:
                case Launch(slot, restarts):
                    await self._launch(slot, restarts)
                case End():
                    await self._end(by_id[action.worker_id], action)
                case Kill():
                    await self._kill(by_id[action.worker_id], action.reason, wanted=wanted)
                case Want(worker_id, desired):
                    await self._want(by_id[worker_id], desired)
        if any(isinstance(action, End | Kill) for action in actions):
            await self.free_memory()

    async def free_memory(self) -> None:
        """Remove shared memory that incarnations which are gone have left."""
        live = await self._database.read(workers.list_for_run, self._run_id, live_only=True)
        removed = await asyncio.to_thread(
            remove_stale_segments, self._run_id, {row.incarnation for row in live}
        )
        if removed:
            logger.info("run %s: freed %d segments of shared memory", self._run_id, len(removed))

    async def _launch(self, slot: Slot, restarts: int) -> None:
        incarnation = secrets.token_hex(8)
        row = await self._database.write(
            workers.add_launch,
            run_id=self._run_id,
            role=slot.role,
            rank=slot.rank,
            incarnation=incarnation,
            job_id=slot.job_id,
            device=slot.device,
            restarts=restarts,
            now=self._clock(),
            launched=True,
        )
        spec = LaunchSpec(
            run_id=self._run_id,
            role=slot.role,
            rank=slot.rank,
            incarnation=incarnation,
            job_id=slot.job_id,
            device=slot.device,
            log_path=self._folder.log(slot.role.value, slot.rank),
            num_threads=slot.num_threads,
        )
        try:
            handle = await self._launcher.launch(spec)
        except EnvironmentFault as error:
            if error.retryable:  # of the machine, not of the worker: no failure is counted
                await self._database.write(workers.discard, row.id)
                raise
            logger.error("run %s: %s", self._run_id, error)
            await self._database.write(
                workers.end,
                row.id,
                state=WorkerState.FAILED,
                reason="could not be started",
                now=self._clock(),
                last_error=str(error),
            )
            return
        await self._database.write(
            workers.set_process,
            row.id,
            host=handle.host,
            pid=handle.pid,
            pid_birth=handle.birth,
        )
        logger.info(
            "run %s: started %s %d (pid %d)", self._run_id, slot.role.value, slot.rank, handle.pid
        )

    async def _end(self, row: Worker, action: End) -> None:
        state = WorkerState.FAILED if action.failed else WorkerState.EXITED
        # What the worker said when it left says more than its exit code.
        reason = row.end_reason or action.reason
        log = logger.warning if action.failed else logger.info
        log("run %s: %s %d: %s", self._run_id, row.role, row.rank, reason)
        last_error = row.last_error or action.reason if action.failed else row.last_error
        await self._database.write(
            workers.end,
            row.id,
            state=state,
            reason=reason,
            now=self._clock(),
            exit_code=action.exit_code,
            last_error=last_error,
        )

    async def _kill(self, row: Worker, reason: str, *, wanted: bool) -> None:
        logger.warning("run %s: kills %s %d: %s", self._run_id, row.role, row.rank, reason)
        handle = handle_of(row)
        if handle is not None:
            self._launcher.kill(handle)
        await self._database.write(
            workers.end,
            row.id,
            state=WorkerState.FAILED if wanted else WorkerState.EXITED,
            reason=reason,
            now=self._clock(),
            last_error=reason if wanted else None,
        )

    async def _want(self, row: Worker, desired: DesiredState) -> None:
        await self._database.write(workers.set_desired, [row.id], desired)
        handle = handle_of(row)
        if desired is DesiredState.DRAIN and handle is not None and row.role != Role.ARCHIVER:
            self._launcher.terminate(handle)


def handle_of(row: Worker) -> ProcessHandle | None:
    """The process of a row, if a launcher of ours started it."""
    if not row.launched or row.pid is None or row.pid_birth is None:
        return None
    return ProcessHandle(row.host, row.pid, row.pid_birth)
