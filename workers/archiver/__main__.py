"""`python -m workers.archiver`: started by the launcher."""

from shared.states import Role
from workers.archiver.worker import main
from workers.runtime import run_worker

run_worker(Role.ARCHIVER, main)
