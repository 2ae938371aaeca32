"""A server's load from its Prometheus page: SGLang (--enable-metrics) and vLLM."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from services.servers.base import ServerFigures

_RUNNING = ("sglang:num_running_reqs", "vllm:num_requests_running")
_QUEUED = ("sglang:num_queue_reqs", "vllm:num_requests_waiting")
_TOKENS_PER_S = ("sglang:gen_throughput",)
_TOKENS_TOTAL = ("sglang:generation_tokens_total", "vllm:generation_tokens_total")
_CACHE_SHARE = ("sglang:token_usage", "vllm:kv_cache_usage_perc")
_WANTED = (*_RUNNING, *_QUEUED, *_TOKENS_PER_S, *_TOKENS_TOTAL, *_CACHE_SHARE)


def figures_of(page: str) -> ServerFigures:
    """The figures of a page in Prometheus' text format; empty when it has none that we know.

    Values of several ranks of a server are summed, shares are the largest.
    """
    # The histograms of such a page are thousands of lines that nobody reads here.
    lines = [line for line in page.splitlines() if line.startswith(_WANTED)]
    values: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                values.setdefault(sample.name, []).append(sample.value)
    except ValueError:
        return ServerFigures()

    def first(names: tuple[str, ...]) -> list[float] | None:
        return next((values[name] for name in names if name in values), None)

    running, queued, rate = first(_RUNNING), first(_QUEUED), first(_TOKENS_PER_S)
    total, share = first(_TOKENS_TOTAL), first(_CACHE_SHARE)
    return ServerFigures(
        running_requests=None if running is None else int(sum(running)),
        queued_requests=None if queued is None else int(sum(queued)),
        tokens_per_s=None if rate is None else sum(rate),
        generated_tokens=None if total is None else int(sum(total)),
        cache_share=None if share is None else max(share),
    )
