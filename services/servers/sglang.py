"""The native interface of one SGLang server.

`check` makes sure that the server answers, speaks this interface, and serves the target;
`generate` sends prompt ids and takes back the ids that the server generated, so nothing is
tokenised twice. Failures say which server, which call, and what came back; retries are the pool's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.generation import Answer, SamplingParameters
from services.servers.base import CallRefused, Chat, ServerFigures, ServerUnavailable
from services.servers.figures import figures_of
from services.servers.http import EXCERPT_CHARACTERS, HttpJson
from services.servers.names import same_model
from shared.config.servers import SglangSection
from shared.dflash.target_shape import TargetShape
from shared.errors import UpstreamError, WrongModelError

_INFO_PATHS = ("/model_info", "/get_model_info")  # the newer name first


class SglangServer:
    """One server; close it, or use it as an async context manager."""

    def __init__(self, url: str, section: SglangSection) -> None:
        self._http = HttpJson(url, section)
        self.url = self._http.url
        self._vocab_size: int | None = None
        self._offers_metrics = True

    async def __aenter__(self) -> SglangServer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    async def healthy(self) -> bool:
        """Whether GET /health answers 200; no error when it does not."""
        return await self._http.healthy()

    async def check(self, target_folder: Path) -> None:
        """WrongModelError when the server serves something else than `target_folder`.

        Compared are the model's path (the same folder, or the same last part of its name, since a
        server on another host has its files elsewhere), the architecture and the vocabulary as
        far as the server tells them. UpstreamError when the server does not answer as it should.
        """
        info = await self._model_info()
        shape = TargetShape.read(target_folder)
        served = info.get("model_path")
        if not isinstance(served, str) or not served:
            raise UpstreamError(
                f"{self.url} names no model_path in its model info; is it an SGLang server?"
            )
        if not same_model(served, target_folder):
            raise WrongModelError(
                f"{self.url} serves {served!r}, the run's target is {str(target_folder)!r}: start "
                "the server with the target's folder, or change target.path"
            )
        vocab_size = info.get("vocab_size")
        if isinstance(vocab_size, int) and vocab_size != shape.vocab_size:
            raise WrongModelError(
                f"{self.url} serves {served!r} with a vocabulary of {vocab_size}, the target "
                f"{str(target_folder)!r} has {shape.vocab_size}"
            )
        config = json.loads((target_folder / "config.json").read_text(encoding="utf-8"))
        theirs, ours = info.get("architectures"), config.get("architectures")
        if theirs and ours and not set(theirs) & set(ours):
            raise WrongModelError(
                f"{self.url} serves {served!r} of architecture {theirs}, the target "
                f"{str(target_folder)!r} is {ours}"
            )
        self._vocab_size = shape.vocab_size

    async def generate(
        self,
        prompt_ids: Sequence[int],
        seed: int,
        sampling: SamplingParameters,
        chat: Chat | None = None,
    ) -> Answer:
        """The server's answer to one prompt; `chat` is not needed.

        Raises PromptRefused, CallRefused, ServerUnavailable, UpstreamTimeout, WrongModelError,
        UpstreamError.
        """
        body = {
            "input_ids": list(prompt_ids),
            "sampling_params": {
                "max_new_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "stop_token_ids": list(sampling.eos_ids),
                "skip_special_tokens": False,
                "sampling_seed": seed % 2**31,
            },
            "stream": False,
        }
        return self._answer(await self._http.call("POST", "/generate", body), sampling)

    async def figures(self) -> ServerFigures:
        """From its Prometheus page; empty when it was started without --enable-metrics."""
        if not self._offers_metrics:
            return ServerFigures()
        try:
            return figures_of(await self._http.text("/metrics"))
        except CallRefused:
            self._offers_metrics = False
            return ServerFigures()

    def _answer(self, tree: Any, sampling: SamplingParameters) -> Answer:
        where = f"{self.url}/generate"
        try:
            finish = tree["meta_info"]["finish_reason"]
            kind = finish["type"] if isinstance(finish, dict) else finish
            output_ids = [int(one) for one in tree["output_ids"]]
        except (KeyError, TypeError, ValueError):
            raise UpstreamError(
                f"{where} answers without output_ids and meta_info.finish_reason; SGLang 0.5 or "
                f"later gives both. It answered: {str(tree)[:EXCERPT_CHARACTERS]}"
            ) from None
        if kind == "abort":
            message = finish.get("message", "no reason given") if isinstance(finish, dict) else ""
            raise ServerUnavailable(f"{where} gave up on the request: {message}")
        if kind not in ("stop", "length"):
            raise UpstreamError(f"{where} ended with the unknown finish reason {kind!r}")
        matched = finish.get("matched") if isinstance(finish, dict) else None
        if (
            kind == "stop"
            and matched in sampling.eos_ids
            and (not output_ids or output_ids[-1] != matched)
        ):
            output_ids.append(int(matched))
        if (
            self._vocab_size is not None
            and output_ids
            and (min(output_ids) < 0 or max(output_ids) >= self._vocab_size)
        ):
            raise WrongModelError(
                f"{where} generated token {max(output_ids)}, the target's vocabulary has "
                f"{self._vocab_size} entries: the server runs another model"
            )
        return Answer(output_ids, "stop" if kind == "stop" else "length")

    async def _model_info(self) -> dict[str, Any]:
        for path in _INFO_PATHS:
            try:
                tree = await self._http.get(path)
            except CallRefused as error:  # this server does not know this path
                refusal = error
                continue
            if isinstance(tree, dict):
                return tree
            raise UpstreamError(f"{self.url}{path} does not answer with a JSON object")
        raise UpstreamError(
            f"{refusal.detail}. There is no SGLang server at {self.url}: check "
            "generator.sglang.urls (host, port, and no path behind them)"
        )
