"""The command line of an SGLang server, and which GPUs each of several takes.

Pure. Options are those of SGLang 0.5; `generator.sglang.args` come last, so they win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.config.servers import SglangSection
from shared.errors import EnvironmentFault

# Drafts of a round as SGLang's own documentation has them for one draft token at a time.
_ONE_BRANCH = (
    *("--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4"),
)


@dataclass(frozen=True)
class ServerPlan:
    """One server to start. `gpus` as CUDA_VISIBLE_DEVICES has them; None leaves it alone."""

    number: int
    port: int
    gpus: str | None

    @property
    def environment(self) -> Mapping[str, str]:
        return {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": self.gpus}


def command(section: SglangSection, model: Path, port: int) -> list[str]:
    """The server's command line."""
    assert section.python is not None, "the configuration demands python or urls"
    words = [section.python, "-m", "sglang.launch_server"]
    words += ["--model-path", str(model), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--enable-metrics"]
    if section.tensor_parallel > 1:
        words += ["--tensor-parallel-size", str(section.tensor_parallel)]
    if section.speculative != "none":
        words += ["--speculative-algorithm", "EAGLE", *_ONE_BRANCH]
    if section.draft_model is not None:
        words += ["--speculative-draft-model-path", section.draft_model]
    if section.hierarchical_cache:
        words += ["--enable-hierarchical-cache"]
    return words + list(section.args)


def plan_servers(
    section: SglangSection, gpus: Sequence[str], free_ports: Sequence[int]
) -> list[ServerPlan]:
    """One plan for each server. `gpus` are the names that may be used, in order; `free_ports`
    serve where no port is configured.

    EnvironmentFault when the GPUs do not suffice. Without any GPU the servers are left to find
    their own device.
    """
    size = section.tensor_parallel
    num_servers = section.num_servers or max(1, len(gpus) // size)
    if gpus and num_servers * size > len(gpus):
        raise EnvironmentFault(
            f"{num_servers} SGLang servers of {size} GPUs each (generator.sglang.num_servers, "
            f"tensor_parallel) need {num_servers * size} GPUs; {len(gpus)} are visible to the "
            f"generator: {','.join(gpus)}"
        )
    plans = []
    for number in range(num_servers):
        port = section.port + number if section.port else free_ports[number]
        own = ",".join(gpus[number * size : (number + 1) * size]) if gpus else None
        plans.append(ServerPlan(number, port, own))
    return plans


def visible_gpus(environment: Mapping[str, str], num_gpus: int) -> list[str]:
    """Names of the GPUs that this process may use, of `num_gpus` on the host."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [str(number) for number in range(num_gpus)]
    return [name.strip() for name in given.split(",") if name.strip()]
