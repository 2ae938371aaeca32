"""A server process that speaks SGLang's native interface, backed by the embedded engine.

    python -m tests.helpers.sglang_peer --model-path DIR --port N [--fault KIND] [--served-as NAME]

Answers are the model's own, or with `--scripted` ids that follow from the prompt's, given at once
and without loading torch. `--fault` makes it misbehave the way servers do: a status code for
every POST ('500', '404', '400'), 'hang', 'disconnect', 'first-500' (a failure once, then well),
'refuse-some' (two prompts of many),
'no-ids' (an old interface), 'startup' (ends before it is ready), 'other-ids' (another vocabulary).
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.generation import Answer, SamplingParameters

if TYPE_CHECKING:
    from services.embedded_engine import EmbeddedEngine

# Lines of a real server's page, with a histogram between them.
METRICS = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="tiny",tp_rank="0"} 7.0
# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="tiny",tp_rank="0"} 3.0
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="tiny"} 12.0
# TYPE sglang:gen_throughput gauge
sglang:gen_throughput{model_name="tiny",tp_rank="0"} 1234.5
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="tiny",tp_rank="0"} 0.25
"""


class Peer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, model: Path, served_as: str, fault: str | None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.model = model
        self._engine: EmbeddedEngine | None = None
        self.lock = threading.Lock()
        self.served_as, self.fault = served_as, fault
        self.offers_metrics = self.is_scripted = False
        self.delay_s = 0.0
        self.num_posts = 0
        self.never = threading.Event()

    @property
    def engine(self) -> EmbeddedEngine:
        """Loaded when the first answer is wanted: servers that only misbehave start fast."""
        if self._engine is None:
            from services.embedded_engine import EmbeddedEngine

            self._engine = EmbeddedEngine.load(
                self.model, dtype="float32", device="cpu", num_threads=1
            )
        return self._engine


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

    def reply_text(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/metrics" and self.server.offers_metrics:
            self.reply_text(METRICS)
        elif self.server.fault == "get-404" or self.path not in ("/health", "/model_info"):
            self.reply(404, {"detail": "Not Found"})
        elif self.server.fault == "get-500":
            self.reply(500, {"detail": "Internal Server Error"})
        elif self.server.fault == "get-hang":
            self.server.never.wait(30)
        elif self.path == "/health":
            self.reply(200, {})
        else:
            self.reply(200, {"model_path": self.server.served_as, "is_generation": True})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.num_posts += 1
            number = self.server.num_posts
        fault = self.server.fault
        if fault in ("400", "404", "500"):
            self.reply(int(fault), {"error": {"message": f"made to answer {fault}"}})
        elif fault == "first-500" and number == 1:
            self.reply(500, {"error": {"message": "made to fail once"}})
        elif fault == "refuse-some" and number in (2, 3):
            self.reply(400, {"error": {"message": "made to refuse this prompt"}})
        elif fault == "hang":
            self.server.never.wait(30)
        elif fault == "disconnect":
            self.close_connection = True
            self.connection.close()
        else:
            self.reply(200, self.generate(body))

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        given = body["sampling_params"]
        sampling = SamplingParameters(
            max_new_tokens=given["max_new_tokens"],
            temperature=given["temperature"],
            top_p=given["top_p"],
            eos_ids=tuple(given["stop_token_ids"]),
        )
        self.server.never.wait(self.server.delay_s)
        if self.server.is_scripted:
            answer = scripted_answer(body["input_ids"], sampling)
        else:
            with self.server.lock:
                seed = given["sampling_seed"]
                answer = self.server.engine.generate([body["input_ids"]], [seed], sampling)[0]
        ids = answer.output_ids
        finish: dict[str, Any] = {"type": "length", "length": len(ids)}
        if answer.finish_reason == "stop":
            finish = {"type": "stop", "matched": ids[-1]}
        tree = {
            "text": "",
            "output_ids": [one + 10**6 for one in ids] if self.server.fault == "other-ids" else ids,
            "meta_info": {
                "id": "peer",
                "finish_reason": finish,
                "prompt_tokens": len(body["input_ids"]),
                "completion_tokens": len(ids),
            },
        }
        if self.server.fault == "no-ids":
            del tree["output_ids"]
        return tree


def scripted_answer(prompt_ids: list[int], sampling: SamplingParameters) -> Answer:
    """The prompt's ids backwards, then the end."""
    ids = [one for one in prompt_ids[::-1] if one not in sampling.eos_ids][:40]
    return Answer([*ids, sampling.eos_ids[0]], "stop")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-as")
    parser.add_argument("--fault")
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--scripted", action="store_true")
    parser.add_argument("--delay-s", type=float, default=0.0)
    given, _ = parser.parse_known_args(argv)
    if given.fault == "startup":
        sys.stderr.write("CUDA out of memory while loading\n")
        return 1
    served_as = given.served_as or str(given.model_path)
    with Peer(given.port, given.model_path, served_as, given.fault) as server:
        server.offers_metrics, server.is_scripted = given.enable_metrics, given.scripted
        server.delay_s = given.delay_s
        print("ready", server.server_address[1], flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
