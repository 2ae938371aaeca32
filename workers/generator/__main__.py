"""`python -m workers.generator`: started by the launcher."""

from shared.states import Role
from workers.generator.worker import main
from workers.runtime import run_worker

run_worker(Role.GENERATOR, main)
