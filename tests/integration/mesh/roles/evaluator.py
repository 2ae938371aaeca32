"""The test role in the place of evaluator."""

from shared.states import Role
from tests.integration.mesh.roles.behaviour import main
from workers.runtime import run_worker

if __name__ == "__main__":
    run_worker(Role.EVALUATOR, main)
