"""The generator's section: engine, sampling parameters, concurrency, servers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from shared.config.section import PositiveInt, Section
from shared.config.servers import OpenaiSection, ServersSection, SglangSection


class GeneratorSection(Section):
    engine: Literal["embedded", "sglang", "openai"] = "embedded"
    thinking: bool | None = Field(
        None, description="enable_thinking of the chat template; None leaves it to the template"
    )
    temperature: float = Field(0.7, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_new_tokens: PositiveInt = 2048
    group_size: PositiveInt = Field(64, description="Prompts of a group of the embedded engine")
    concurrency: PositiveInt = Field(
        2048, description="Most requests at once; how many are worth it is found while it runs"
    )
    device: str = "auto"
    num_threads: PositiveInt | None = None
    batch_completions: PositiveInt = Field(500, description="Completions of a JSONL batch file")
    sglang: SglangSection = SglangSection()
    openai: OpenaiSection = OpenaiSection()

    @property
    def servers(self) -> ServersSection:
        """The section of the engine's servers; the embedded engine has none."""
        assert self.engine != "embedded"
        return self.sglang if self.engine == "sglang" else self.openai

    @property
    def num_servers(self) -> int:
        """Servers, or engines, as far as the configuration says; at least one."""
        if self.engine == "embedded":
            return 1
        return len(self.servers.urls) or self.sglang.num_servers or 1

    @model_validator(mode="after")
    def _server_is_reachable(self) -> GeneratorSection:
        if self.engine == "sglang" and not self.sglang.urls and self.sglang.python is None:
            raise ValueError(
                "generator.engine is 'sglang' but neither generator.sglang.urls nor "
                "generator.sglang.python is set: attach a server by URL, or name the Python of "
                "an environment that has sglang"
            )
        if self.engine == "openai" and not self.openai.urls:
            raise ValueError(
                "generator.engine is 'openai' but generator.openai.urls is empty: name the "
                "address of a server, such as http://127.0.0.1:8000 (without /v1)"
            )
        return self
