"""What the trainer leaves behind: metrics, events, checkpoints, and where a restart stands.

    step -> metrics.jsonl, StepTaken -> every N steps a snapshot -> [write, a thread] -> prune

Training goes on while a checkpoint is written; the next snapshot waits until the last one is on the
disk, so at most one copy of the state exists. A failed write ends the trainer with its error: the
earlier checkpoints are untouched, and a restart replays from the newest one that is sound.
"""

from __future__ import annotations

import asyncio
import logging
import time

from services.files import remove_temporaries
from shared.api.events import CheckpointRemoved, CheckpointSaved, GateReport, StepTaken
from shared.errors import IntegrityError, MeshError, TrainingDiverged
from shared.states import WorkerState
from workers.drafter_trainer.checkpoints import Checkpoint, CheckpointStore
from workers.drafter_trainer.series import MetricsLog, truncate_to_step
from workers.drafter_trainer.training import DrafterTraining, Snapshot, StepResult
from workers.runtime import WorkerContext

logger = logging.getLogger(__name__)


class Recorder:
    """Belongs to the event loop; torch work goes to threads."""

    def __init__(
        self, context: WorkerContext, training: DrafterTraining, store: CheckpointStore
    ) -> None:
        self._context = context
        self._training = training
        self._store = store
        self._writing: asyncio.Task[None] | None = None
        self._metrics: MetricsLog | None = None
        self._saved_step = 0
        self.is_finished = False

    async def resume(self) -> None:
        """Stand at the newest sound checkpoint, and cut the series to it."""
        context, training = self._context, self._training
        remove_temporaries(context.folder.checkpoints)
        incomplete = await asyncio.to_thread(self._store.clean)
        if incomplete:
            logger.warning("ignored incomplete checkpoints: %s", ", ".join(incomplete))
        restored = await asyncio.to_thread(self._restore_newest)
        for checkpoint in self._store.complete():
            self._report_checkpoint(checkpoint)  # a kill may have come before the first report
        if restored is not None:
            self._saved_step = restored.step
            context.milestone(f"resumed from checkpoint {restored.folder.root.name}")
        else:
            context.milestone(
                f"new drafter with {training.shape.num_parameters:,} weights on {training.device}"
            )
        truncate_to_step(context.folder.metrics_jsonl, training.step)
        self._metrics = MetricsLog(context.folder.metrics_jsonl)
        context.progress.update(
            step=training.step,
            epoch=training.epoch,
            next_micro_batch_id=training.next_micro_batch_id,
        )

    def _restore_newest(self) -> Checkpoint | None:
        """Load the newest checkpoint that is what was written; damaged ones are set aside.

        Nothing but other bytes is damage: a fault of the machine, or a sound checkpoint that this
        program cannot use, ends the trainer and touches nothing.
        """
        for checkpoint in reversed(self._store.complete()):
            try:
                checkpoint.verify()
            except IntegrityError as error:
                logger.warning(
                    "%s; training goes on from the checkpoint before %s, or from the beginning",
                    error,
                    checkpoint.folder.root.name,
                )
                self._store.set_aside(checkpoint)
                self._context.emit(CheckpointRemoved, step=checkpoint.step)
                continue
            self._training.restore(checkpoint)
            return checkpoint
        return None

    async def take_step(self, step: StepResult) -> None:
        """Record a step; save a checkpoint when one is due; act on a diverging loss."""
        self._raise_failed_write()
        self._record(step)
        if step.fatal is not None:
            raise TrainingDiverged(step.fatal)
        if step.loss is None:
            logger.warning("step %d skipped: its loss or gradient is not finite", step.step)
        if step.warning is not None:
            await self._diverging(step)
        if step.step % self._context.config.trainer.checkpoint_every_steps == 0:
            await self._start_checkpoint()

    async def finish(self) -> None:
        """The plan is done: the final checkpoint is on the disk when this returns."""
        await self.save_if_newer()
        self.is_finished = True
        self._context.set_state(WorkerState.FINISHED)
        self._context.milestone(f"training finished at step {self._training.step}")

    async def save_if_newer(self) -> None:
        """Save the last finished step unless it is saved; returns once it is on the disk."""
        if self._training.step > self._saved_step:
            await self._start_checkpoint()
        await self._written()

    async def close(self) -> None:
        """Leave nothing behind: a write that is going on ends first, however training ended."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
            error = self._writing.exception()
            if error is not None:
                logger.error("the last checkpoint was not written: %s", error)
        if self._metrics is not None:
            self._metrics.close()

    def _record(self, step: StepResult) -> None:
        context = self._context
        fields = {
            "step": step.step,
            "epoch": step.epoch,
            "loss": step.loss,
            "accuracy": step.accuracy,
            "lr": step.lr,
            "grad_norm": step.grad_norm,
            "num_tokens": step.num_tokens,
            "simulated_acceptance_length": step.simulated_acceptance_length,
        }
        assert self._metrics is not None, "resume comes before the first step"
        self._metrics.append({**fields, "time": round(time.time(), 3)})
        context.emit(StepTaken, **fields)
        context.progress.update(step=step.step, steps_total=step.steps_total, epoch=step.epoch)
        context.metrics["lr"] = step.lr
        for name, value in (("loss", step.loss), ("accuracy", step.accuracy)):
            if value is not None:
                context.metrics[name] = value

    async def _diverging(self, step: StepResult) -> None:
        """`trainer.on_divergence`: warn goes on, pause asks for a person, stop fails the run.

        A pause takes effect with the next heartbeat's answer, a few steps on.
        """
        assert step.warning is not None
        action = self._context.config.trainer.on_divergence
        logger.warning("%s", step.warning)
        if action == "stop":
            raise TrainingDiverged(step.warning)
        if action == "pause":
            await self.save_if_newer()
            self._context.emit(
                GateReport,
                blocked=True,
                reason=step.warning,
                report={"kind": "divergence", "step": step.step, "loss": step.loss},
            )

    async def _start_checkpoint(self) -> None:
        await self._written()
        snapshot = await asyncio.to_thread(self._training.snapshot)
        self._writing = asyncio.create_task(self._write(snapshot), name="checkpoint")

    async def _written(self) -> None:
        """Returns once the write that is going on has ended; raises what it failed with."""
        if self._writing is not None:
            # Not awaited itself: a cancelled trainer must not abandon the thread that writes.
            await asyncio.wait([self._writing])
            self._writing.result()

    async def _write(self, snapshot: Snapshot) -> None:
        try:
            checkpoint = await asyncio.to_thread(self._write_files, snapshot)
        except MeshError as error:
            self._context.fail(error)  # now, though the next step may be long in coming
            raise
        self._saved_step = snapshot.step
        self._report_checkpoint(checkpoint)
        for step in await asyncio.to_thread(self._store.prune):
            self._context.emit(CheckpointRemoved, step=step)

    def _write_files(self, snapshot: Snapshot) -> Checkpoint:
        if self._metrics is not None:
            self._metrics.sync()  # the series must reach as far as the checkpoint does
        return self._store.write(
            snapshot.step, snapshot.state, snapshot.tensors, snapshot.save_drafter
        )

    def _report_checkpoint(self, checkpoint: Checkpoint) -> None:
        context, root = self._context, checkpoint.folder.root
        try:
            state = checkpoint.read_state()
        except IntegrityError as error:
            logger.warning("checkpoint %s is not reported: %s", root.name, error)
            return
        context.emit(
            CheckpointSaved,
            step=checkpoint.step,
            next_micro_batch_id=state.get("next_micro_batch_id", 0),
            epoch=state.get("epoch", 0),
            loss=state.get("loss"),
            num_bytes=checkpoint.num_bytes,
            path=root.relative_to(context.folder.root).as_posix(),
        )
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        marker = checkpoint.folder.complete_marker
        for path in [*(path for path in files if path != marker), marker]:
            context.announce_file(path, "checkpoint")

    def _raise_failed_write(self) -> None:
        if self._writing is not None and self._writing.done():
            self._writing.result()
