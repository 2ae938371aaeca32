"""The test role in the place of generator."""

from shared.states import Role
from tests.integration.mesh.roles.behaviour import main
from workers.runtime import run_worker

if __name__ == "__main__":
    run_worker(Role.GENERATOR, main)
