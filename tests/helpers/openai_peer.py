"""A server process that speaks OpenAI's interface the way several servers do; answers are scripted.

    python -m tests.helpers.openai_peer --model-path DIR --port N --kind KIND [--key KEY]

`ids` takes lists of ids and gives ids back (as vLLM does); `ids-to-text` gives text; `text` takes
text only and refuses fields it does not know (transformers serve); `chat` has conversations only;
`reasoning` splits the thought off; `drops` leaves special tokens out of its text; `other` has
another vocabulary.
Every answer is the thought and the answer below, ended by itself; a request with `echo_request` is
itself the answer of `chat`.
"""

from __future__ import annotations

import argparse
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

THOUGHT, ANSWER = "12 + 7 is 19.", "The answer is 19."
TEXT = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
TEXT_FIELDS = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed"}


class Peer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, model: Path, kind: str, key: str | None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.name, self.kind, self.key = model.name, kind, key


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Peer

    def log_message(self, *args: Any) -> None:
        pass

    def reply(self, status: int, tree: Any) -> None:
        data = json.dumps(tree).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def is_allowed(self) -> bool:
        given = self.headers.get("Authorization")
        if self.server.key is None or given == f"Bearer {self.server.key}":
            return True
        self.reply(401, {"error": f"wrong key: {given}"})
        return False

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.is_allowed():
            self.reply(200, {"object": "list", "data": [{"id": self.server.name}]})
        elif self.path != "/v1/models":
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_allowed():
            return
        kind, is_chat = self.server.kind, self.path == "/v1/chat/completions"
        prompt = body.get("prompt")
        if is_chat is not (kind in ("chat", "reasoning")):
            self.reply(404, {"detail": "Not Found"})
        elif isinstance(prompt, list) and kind in ("text", "drops"):
            self.reply(400, {"detail": "prompt must be a string."})
        elif kind == "text" and (unexpected := set(body) - TEXT_FIELDS):
            self.reply(422, {"detail": f"Unexpected fields in the request: {unexpected}"})
        else:
            self.reply(200, self.answer(body))

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        kind, tokenizer = self.server.kind, self.server.tokenizer
        ids = tokenizer.encode(TEXT, add_special_tokens=False).ids[: body["max_tokens"]]
        stopped = body["max_tokens"] > len(ids)
        text = TEXT if stopped else tokenizer.decode(ids, skip_special_tokens=False)
        if kind == "drops":
            ids += [0] * 30
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if stopped else "length"}
        if kind in ("chat", "reasoning"):
            message = {"role": "assistant", "content": text}
            if body.get("echo_request"):
                message["content"] = json.dumps(body)
            if kind == "reasoning":
                message |= {"content": ANSWER, "reasoning_content": THOUGHT}
            choice["message"] = message
        else:
            choice["text"] = text
        if body.get("return_token_ids") and kind in ("ids", "other"):
            end = [tokenizer.token_to_id("<|im_end|>")] if stopped else []
            choice["token_ids"] = [*ids, *end]
        if kind == "other":
            choice["token_ids"] = [one + 10**6 for one in ids]
        usage = {} if body.get("echo_request") else {"completion_tokens": len(ids) + stopped}
        if isinstance(body.get("prompt"), str):
            usage["prompt_tokens"] = len(tokenizer.encode(body["prompt"]).ids)
        return {"object": "text_completion", "choices": [choice], "usage": usage}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--key")
    given = parser.parse_args(argv)
    with Peer(given.port, given.model_path, given.kind, given.key) as server:
        print("ready", server.server_address[1], flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
