"""One OpenAI-compatible server: vLLM, transformers serve, and others.

    prompt ids --ids-->  POST /v1/completions       token ids where it gives them (vLLM), else text
               --text--> POST /v1/completions       text
      messages --chat--> POST /v1/chat/completions  token ids where it gives them, else text

The form in which prompts go out is agreed on by `check` (openai_forms.py) and stays. Invariant: the
server works on exactly the prompt's ids, or the prompt is refused. An answer given as text is
tokenised here and marked; what a server takes out of an answer (reasoning, tool calls) cannot be
put back, so such an answer is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import orjson

from services.generation import Answer, SamplingParameters
from services.servers.answers import read_answer
from services.servers.base import CallRefused, Chat, PromptRefused, ServerFigures
from services.servers.figures import figures_of
from services.servers.http import HttpJson
from services.servers.names import same_model
from services.servers.texts import TextCodec, exact_text
from shared.config.servers import OpenaiSection
from shared.errors import UpstreamError, WrongModelError

PromptForm = Literal["ids", "text", "chat"]
_FORMS: tuple[PromptForm, ...] = ("ids", "text", "chat")
_PATHS: dict[PromptForm, str] = {
    "ids": "/v1/completions",
    "text": "/v1/completions",
    "chat": "/v1/chat/completions",
}
# Letters, figures, signs and several scripts: two tokenizers hardly agree on it by chance.
_PROBE = "Is 3.14 = 22/7? Naïve \u201cquotes\u201d, 你好, 12345 + 67890; def f(x): return x**2"


class OpenaiServer:
    """One server; close it, or use it as an async context manager."""

    def __init__(
        self, url: str, section: OpenaiSection, codec: TextCodec, *, api_key: str | None = None
    ) -> None:
        self._section = section
        self._http = HttpJson(url.rstrip("/").removesuffix("/v1"), section, secret=api_key)
        self.url = self._http.url
        self._codec = codec
        self._model = section.model
        self._form: PromptForm | None = (
            None if section.prompt_form == "auto" else section.prompt_form
        )
        self._offers_metrics = True

    async def __aenter__(self) -> OpenaiServer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    @property
    def form(self) -> PromptForm | None:
        """How prompts go out; None until `check` has found out."""
        return self._form

    async def healthy(self) -> bool:
        """Whether it answers at all: not every server has a /health."""
        if await self._http.healthy():
            return True
        try:
            await self._http.get("/v1/models")
        except UpstreamError:
            return False
        return True

    async def check(self, target_folder: Path) -> None:
        """Find the model and the form of prompts, and try both with one token.

        WrongModelError when it lists other models only, or counts or decodes tokens unlike the
        target's tokenizer.
        """
        self._model = await self._find_model(target_folder)
        prompt_ids = self._codec.encode(_PROBE)
        sampling = SamplingParameters(1, 0.0, 1.0, self._codec.eos_ids)
        chat = Chat([{"role": "user", "content": _PROBE}], None)
        forms = _FORMS if self._form is None else (self._form,)
        refusals = []
        for form in forms:
            try:
                body = self._body(form, prompt_ids, 0, sampling, chat)
                tree = await self._http.call("POST", _PATHS[form], body)
            except (PromptRefused, CallRefused) as error:
                refusals.append(f"{form}: {error.detail}")
                continue
            self._check_probe(form, tree, len(prompt_ids))
            self._form = form
            return
        raise UpstreamError(
            f"{self.url} takes no prompt ({self._section.path}.prompt_form is "
            f"{self._section.prompt_form!r}). " + "; ".join(refusals)
        )

    async def generate(
        self,
        prompt_ids: Sequence[int],
        seed: int,
        sampling: SamplingParameters,
        chat: Chat | None = None,
    ) -> Answer:
        """The server's answer; `chat` is needed where the server takes conversations only.

        Raises PromptRefused, CallRefused, ServerUnavailable, UpstreamTimeout, WrongModelError,
        UpstreamError.
        """
        assert self._form is not None, "check comes first"
        path = _PATHS[self._form]
        body = self._body(self._form, prompt_ids, seed, sampling, chat)
        tree = await self._http.call("POST", path, body)
        where = f"{self.url}{path}"
        return read_answer(
            tree, where, self._codec, sampling, prompt_ids, knows_prompt=self._form != "ids"
        )

    async def figures(self) -> ServerFigures:
        """From its Prometheus page; empty when it has none."""
        if not self._offers_metrics:
            return ServerFigures()
        try:
            return figures_of(await self._http.text("/metrics"))
        except CallRefused:
            self._offers_metrics = False
            return ServerFigures()

    def _body(
        self,
        form: PromptForm,
        prompt_ids: Sequence[int],
        seed: int,
        sampling: SamplingParameters,
        chat: Chat | None,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed % 2**31,
        }
        if form == "ids":
            body["prompt"] = list(prompt_ids)
            body["return_token_ids"] = True
            body["stop_token_ids"] = list(sampling.eos_ids)
            body["skip_special_tokens"] = False
        elif form == "text":
            body["prompt"] = exact_text(prompt_ids, self._codec)
        elif chat is None:
            raise PromptRefused(f"{self.url} takes conversations only, and this prompt is none")
        else:
            body["messages"] = [_as_openai(message) for message in chat.messages]
            if chat.tools:
                body["tools"] = [dict(tool) for tool in chat.tools]
            if chat.thinking is not None:
                body["chat_template_kwargs"] = {"enable_thinking": chat.thinking}
        return body | self._section.extra_body

    async def _find_model(self, target_folder: Path) -> str:
        """The name to ask for: the configured one, or the target's among those listed."""
        try:
            tree = await self._http.get("/v1/models")
            listed = {str(one["id"]): str(one.get("root") or one["id"]) for one in tree["data"]}
        except CallRefused as error:
            raise UpstreamError(
                f"{error.detail}. There is no OpenAI-compatible server at {self.url}: check "
                "generator.openai.urls and generator.openai.api_key_env"
            ) from None
        except (KeyError, TypeError, AttributeError):
            raise UpstreamError(f"{self.url}/v1/models does not list models") from None
        if self._section.model is not None:
            if listed and self._section.model not in listed:
                raise WrongModelError(
                    f"{self.url} does not list generator.openai.model {self._section.model!r}; it "
                    f"lists {', '.join(sorted(listed))}"
                )
            return self._section.model
        for name, root in listed.items():
            if same_model(name, target_folder) or same_model(root, target_folder):
                return name
        raise WrongModelError(
            f"{self.url} lists {', '.join(sorted(listed)) or 'no model'}, none of them called like "
            f"the target {str(target_folder)!r}: if one of them is the target, name it in "
            "generator.openai.model"
        )

    def _check_probe(self, form: PromptForm, tree: Any, num_tokens: int) -> None:
        """WrongModelError when the server's tokenizer shows itself to be another."""
        where = f"{self.url}{_PATHS[form]}"
        try:
            choice = tree["choices"][0]
            counted = (tree.get("usage") or {}).get("prompt_tokens")
            ids, text = choice.get("token_ids"), choice.get("text")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise UpstreamError(f"{where} answers without choices") from None
        if form == "text" and counted is not None and counted != num_tokens:
            raise WrongModelError(
                f"{where} counts {counted} tokens where the target's tokenizer counts "
                f"{num_tokens}: it serves a model with another tokenizer"
            )
        if ids is None or text is None or form != "ids":
            return
        outside = [one for one in ids if not 0 <= one < self._codec.vocab_size]
        if outside or (text and self._codec.decode(ids) != text and "\ufffd" not in text):
            raise WrongModelError(
                f"{where} gives the ids {ids} the text {text!r}, which is not what the target's "
                "tokenizer says: it serves another model"
            )


def _as_openai(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose tool calls have their arguments as JSON text, as the interface demands."""
    copy = dict(message)
    if calls := copy.get("tool_calls"):
        copy["tool_calls"] = [
            {"id": f"call_{at}", "type": "function", **call, "function": _with_text(call)}
            for at, call in enumerate(calls)
        ]
    return copy


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if not isinstance(function.get("arguments"), str):
        function["arguments"] = orjson.dumps(function.get("arguments") or {}).decode()
    return function
