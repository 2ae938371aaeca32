"""`python -m workers.evaluator`: started by the launcher."""

from shared.states import Role
from workers.evaluator.worker import main
from workers.runtime import run_worker

run_worker(Role.EVALUATOR, main)
