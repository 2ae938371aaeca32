"""`python -m workers.batcher`: started by the launcher."""

from shared.states import Role
from workers.batcher.worker import main
from workers.runtime import run_worker

run_worker(Role.BATCHER, main)
