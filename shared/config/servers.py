"""Servers that generate: how they are reached, how long a failing one is borne, how ours start.

`ServersSection` is what all kinds have in common. `SglangSection` attaches SGLang servers by URL or
starts them; `OpenaiSection` attaches any OpenAI-compatible server. `path` is how error messages
name the section.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from shared.config.section import PositiveInt, Section


class ServersSection(Section):
    """Addresses, time limits, retries, and the circuit breaker of each server."""

    path: ClassVar[str] = "generator"

    urls: list[str] = Field([], description="Servers that run already")
    request_timeout_s: float = Field(600.0, gt=0)
    connect_timeout_s: float = Field(10.0, gt=0)
    max_retries: int = Field(4, ge=0, description="Further attempts at a prompt, at once")
    breaker_failures: PositiveInt = Field(3, description="In a row, until a server is left alone")
    breaker_backoff_s: float = Field(0.5, gt=0, description="First rest of a failing server")
    breaker_max_backoff_s: float = Field(30.0, gt=0, description="Longest rest; each doubles")
    all_down_limit_s: float = Field(600.0, gt=0, description="No server at all: the run fails")

    @model_validator(mode="after")
    def _rests_grow(self) -> ServersSection:
        if self.breaker_max_backoff_s < self.breaker_backoff_s:
            raise ValueError(
                f"{self.path}.breaker_max_backoff_s ({self.breaker_max_backoff_s}) is shorter than "
                f"{self.path}.breaker_backoff_s ({self.breaker_backoff_s}): raise the former"
            )
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(
                    f"{self.path}.urls: {url!r} is not an address such as http://host:30000"
                )
        return self


class SglangSection(ServersSection):
    """SGLang servers: attached by URL, or started by the run with a Python of their own."""

    path: ClassVar[str] = "generator.sglang"

    python: str | None = Field(None, description="Interpreter of the environment with sglang")
    num_servers: PositiveInt | None = Field(
        None, description="Servers to start; none: visible GPUs / tensor_parallel"
    )
    tensor_parallel: PositiveInt = Field(1, description="GPUs of a server")
    port: int = Field(0, ge=0, le=65535, description="Of the first server; 0: free ports")
    speculative: Literal["none", "mtp", "eagle"] = Field(
        "none", description="mtp: the target's own prediction layer; eagle: draft_model"
    )
    draft_model: str | None = Field(None, description="Folder of the EAGLE draft model")
    hierarchical_cache: bool = Field(False, description="Keep evicted prefixes in host memory")
    args: list[str] = Field([], description="Further launch arguments; they win")
    startup_s: float = Field(900.0, gt=0)
    max_restarts: int = Field(5, ge=0, description="Of a server in restart_window_s")
    restart_window_s: float = Field(1800.0, gt=0)
    unhealthy_s: float = Field(
        120.0, gt=0, description="Neither health nor answers: it is restarted"
    )

    @model_validator(mode="after")
    def _draft_model_fits(self) -> SglangSection:
        if (self.speculative == "eagle") != (self.draft_model is not None):
            raise ValueError(
                "generator.sglang.draft_model goes with generator.sglang.speculative = 'eagle' "
                "and with nothing else: set both or neither"
            )
        return self


class OpenaiSection(ServersSection):
    """OpenAI-compatible servers: vLLM, transformers serve, and others."""

    path: ClassVar[str] = "generator.openai"

    model: str | None = Field(
        None, description="Name of the model on the server; none: the one it lists"
    )
    api_key_env: str | None = Field(
        None, description="Environment variable with the key; the key itself is never stored"
    )
    prompt_form: Literal["auto", "ids", "text", "chat"] = Field(
        "auto",
        description="ids, text: /v1/completions; chat: /v1/chat/completions; auto: each in turn",
    )
    extra_body: dict[str, Any] = Field({}, description="Further fields of every request")

    @model_validator(mode="after")
    def _extra_body_adds_only(self) -> OpenaiSection:
        own = {
            "model",
            "prompt",
            "messages",
            "max_tokens",
            "temperature",
            "top_p",
            "seed",
            "stream",
        }
        if taken := sorted(own & set(self.extra_body)):
            raise ValueError(
                f"generator.openai.extra_body must not set {', '.join(taken)}: the generator does; "
                "use the fields of [generator]"
            )
        return self
