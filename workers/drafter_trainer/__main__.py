"""`python -m workers.drafter_trainer`: started by the launcher."""

from shared.states import Role
from workers.drafter_trainer.worker import main
from workers.runtime import run_worker

run_worker(Role.DRAFTER_TRAINER, main)
