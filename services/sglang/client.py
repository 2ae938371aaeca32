"""The native interface of one SGLang server.

`check` makes sure that the server answers, speaks this interface, and serves the target;
`generate` sends prompt ids and takes back the ids that the server generated, so nothing is
tokenised twice. Failures say which server, which call, and what came back; retries are the pool's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import httpx

from services.generation import Answer, SamplingParameters
from shared.config.sampling import SglangSection
from shared.dflash.target_shape import TargetShape
from shared.errors import UpstreamError, UpstreamTimeout, WrongModelError

_INFO_PATHS = ("/model_info", "/get_model_info")  # the newer name first
_EXCERPT_CHARACTERS = 300


class PromptRefused(UpstreamError):
    """The server is fine but does not take this prompt; another attempt changes nothing."""


class CallRefused(UpstreamError):
    """The server does not have this call, or does not let us use it; no prompt is at fault."""


class ServerUnavailable(UpstreamError):
    """The server cannot be reached, or is overloaded: a later attempt may succeed."""

    retryable: ClassVar[bool] = True


class SglangClient:
    """One server; close it, or use it as an async context manager."""

    def __init__(self, url: str, section: SglangSection, *, max_connections: int = 256) -> None:
        self.url = url.rstrip("/")
        self._vocab_size: int | None = None
        self._request_timeout_s = section.request_timeout_s
        self._http = httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(section.request_timeout_s, connect=section.connect_timeout_s),
            limits=httpx.Limits(max_connections=max_connections),
            trust_env=False,
        )
        self._check_timeout = httpx.Timeout(
            min(section.request_timeout_s, 30.0), connect=section.connect_timeout_s
        )

    async def __aenter__(self) -> SglangClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def healthy(self) -> bool:
        """Whether GET /health answers 200; no error when it does not."""
        try:
            answer = await self._http.get("/health", timeout=5.0)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

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
        self, prompt_ids: Sequence[int], seed: int, sampling: SamplingParameters
    ) -> Answer:
        """The server's answer to one prompt.

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
        tree = await self._call("POST", "/generate", json=body)
        return self._answer(tree, sampling)

    def _answer(self, tree: Any, sampling: SamplingParameters) -> Answer:
        where = f"{self.url}/generate"
        try:
            finish = tree["meta_info"]["finish_reason"]
            kind = finish["type"] if isinstance(finish, dict) else finish
            output_ids = [int(one) for one in tree["output_ids"]]
        except (KeyError, TypeError, ValueError):
            raise UpstreamError(
                f"{where} answers without output_ids and meta_info.finish_reason; SGLang 0.5 or "
                f"later gives both. It answered: {str(tree)[:_EXCERPT_CHARACTERS]}"
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
        if self._vocab_size is not None and any(
            not 0 <= one < self._vocab_size for one in output_ids
        ):
            raise WrongModelError(
                f"{where} generated token {max(output_ids)}, the target's vocabulary has "
                f"{self._vocab_size} entries: the server runs another model"
            )
        return Answer(output_ids, "stop" if kind == "stop" else "length")

    async def _model_info(self) -> dict[str, Any]:
        for path in _INFO_PATHS:
            try:
                tree = await self._call("GET", path, timeout=self._check_timeout)
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

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        where = f"{self.url}{path}"
        try:
            answer = await self._http.request(method, path, **options)
        except httpx.ConnectTimeout:
            raise UpstreamTimeout(f"{where}: no connection in time; is the server up?") from None
        except httpx.TimeoutException:
            raise UpstreamTimeout(
                f"{where} did not answer in time (generator.sglang.request_timeout_s)"
            ) from None
        except httpx.TransportError as error:
            raise ServerUnavailable(
                f"{where} cannot be reached: {error or type(error).__name__}"
            ) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise UpstreamError(f"{self.url!r} is not a usable address: {error}") from None
        status = answer.status_code
        if status == httpx.codes.OK:
            try:
                return answer.json()
            except ValueError:
                raise UpstreamError(f"{where} does not answer with JSON") from None
        detail = f"{where} answers {status}: {answer.text[:_EXCERPT_CHARACTERS].strip()}"
        if status in (429, 502, 503, 504):
            raise ServerUnavailable(detail)
        if status in (400, 413, 422):
            raise PromptRefused(detail)
        if status < 500:
            raise CallRefused(detail)
        raise UpstreamError(detail)


def same_model(served: str, folder: Path) -> bool:
    """Whether a server's model path and a local folder are the same model, judged by name."""
    if Path(served).expanduser().resolve() == folder.resolve():
        return True
    return bool(_names(served) & _names(str(folder.resolve())))


def _names(path: str) -> set[str]:
    """Names a model goes by: the last part of its path, and the hub name of a cached snapshot."""
    parts = [part for part in path.replace("\\", "/").rstrip("/").split("/") if part]
    if not parts:
        return set()
    names = {parts[-1].lower()}
    if len(parts) >= 3 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        names = {parts[-3].rpartition("--")[2].lower()}
    return names
