"""A server's Prometheus page, in the forms that SGLang and vLLM give it."""

from services.servers.base import ServerFigures
from services.servers.figures import figures_of
from tests.helpers.sglang_peer import METRICS

VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="t"} 4.0
vllm:num_requests_running{engine="1",model_name="t"} 5.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="t"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 900.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="t"} 1.5e+06
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.1
vllm:kv_cache_usage_perc{engine="1"} 0.3
"""


def test_sglang():
    assert figures_of(METRICS) == ServerFigures(7, 3, 1234.5, None, 0.25)


def test_vllm_sums_its_engines():
    assert figures_of(VLLM) == ServerFigures(9, 2, None, 1_500_000, 0.3)


def test_pages_that_tell_nothing():
    assert figures_of("") == ServerFigures() == figures_of("<html>hello</html>")
    assert figures_of("sglang:num_running_reqs{ broken") == ServerFigures()
