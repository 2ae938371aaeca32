"""The generator's section: engine, sampling parameters, servers and retries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from shared.config.section import PositiveInt, Section


class SglangSection(Section):
    """SGLang servers: attached by URL, or started by the run with their own Python."""

    urls: list[str] = Field([], description="Servers that run already; empty: start one")
    python: str | None = Field(None, description="Interpreter of the environment with sglang")
    args: list[str] = Field([], description="Further launch arguments")
    port: int = Field(0, ge=0, le=65535, description="0: a free port")
    startup_s: float = Field(900.0, gt=0)
    request_timeout_s: float = Field(600.0, gt=0)
    connect_timeout_s: float = Field(10.0, gt=0)
    max_retries: int = Field(4, ge=0)


class GeneratorSection(Section):
    engine: Literal["embedded", "sglang"] = "embedded"
    thinking: bool | None = Field(
        None, description="enable_thinking of the chat template; None leaves it to the template"
    )
    temperature: float = Field(0.7, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_new_tokens: PositiveInt = 2048
    group_size: PositiveInt = Field(64, description="Prompts of a group of the embedded engine")
    concurrency: PositiveInt = Field(256, description="Requests at once with an outside server")
    device: str = "auto"
    num_threads: PositiveInt | None = None
    batch_completions: PositiveInt = Field(500, description="Completions of a JSONL batch file")
    sglang: SglangSection = SglangSection()

    @model_validator(mode="after")
    def _server_is_reachable(self) -> GeneratorSection:
        if self.engine == "sglang" and not self.sglang.urls and self.sglang.python is None:
            raise ValueError(
                "generator.engine is 'sglang' but neither generator.sglang.urls nor "
                "generator.sglang.python is set: attach a server by URL, or name the Python of "
                "an environment that has sglang"
            )
        return self
