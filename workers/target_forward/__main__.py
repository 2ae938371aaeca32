"""`python -m workers.target_forward`: started by the launcher."""

from shared.states import Role
from workers.runtime import run_worker
from workers.target_forward.worker import main

run_worker(Role.TARGET_FORWARD, main)
