"""Command lines and GPUs of the servers that a run starts."""

from pathlib import Path

import pytest

from services.servers.flags import command, plan_servers, visible_gpus
from services.servers.fleet import RestartLimit
from shared.config.servers import SglangSection
from shared.errors import EnvironmentFault


def words(**fields):
    section = SglangSection(python="/opt/sglang/bin/python", **fields)
    return command(section, Path("/models/target"), 30001)


def option(given, name):
    return given[given.index(name) + 1]


def test_a_plain_server():
    given = words()
    assert given[:3] == ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]
    assert option(given, "--model-path") == "/models/target"
    assert (option(given, "--host"), option(given, "--port")) == ("127.0.0.1", "30001")
    assert "--enable-metrics" in given
    assert not [word for word in given if "speculative" in word or "hierarchical" in word]


def test_presets_and_further_arguments():
    mtp = words(speculative="mtp", tensor_parallel=2, hierarchical_cache=True)
    assert option(mtp, "--speculative-algorithm") == "EAGLE"
    assert option(mtp, "--speculative-num-steps") == "3"
    assert option(mtp, "--speculative-eagle-topk") == "1"
    assert option(mtp, "--speculative-num-draft-tokens") == "4"
    assert "--speculative-draft-model-path" not in mtp
    assert option(mtp, "--tensor-parallel-size") == "2" and "--enable-hierarchical-cache" in mtp
    eagle = words(speculative="eagle", draft_model="/models/eagle", args=["--mem", "0.8"])
    assert option(eagle, "--speculative-draft-model-path") == "/models/eagle"
    assert eagle[-2:] == ["--mem", "0.8"]


def test_eagle_and_its_draft_model_go_together():
    with pytest.raises(ValueError, match="both or neither"):
        SglangSection(speculative="eagle")
    with pytest.raises(ValueError, match="both or neither"):
        SglangSection(speculative="mtp", draft_model="/models/eagle")


@pytest.mark.parametrize(
    ("fields", "gpus", "expected"),
    [
        ({}, ["0", "1", "2"], ["0", "1", "2"]),
        ({"tensor_parallel": 2}, ["4", "5", "6", "7", "8"], ["4,5", "6,7"]),
        ({"num_servers": 1}, ["0", "1"], ["0"]),
        ({}, [], [None]),
        ({"num_servers": 2}, [], [None, None]),
    ],
)
def test_gpus_are_dealt_out(fields, gpus, expected):
    plans = plan_servers(SglangSection(**fields), gpus, [7001, 7002, 7003])
    assert [plan.gpus for plan in plans] == expected
    assert [plan.port for plan in plans] == [7001, 7002, 7003][: len(plans)]
    shown = [plan.environment.get("CUDA_VISIBLE_DEVICES") for plan in plans]
    assert shown == expected


def test_ports_follow_the_configured_one_and_too_few_gpus_are_told():
    plans = plan_servers(SglangSection(port=30000, num_servers=2), ["0", "1"], [1, 2])
    assert [plan.port for plan in plans] == [30000, 30001]
    with pytest.raises(EnvironmentFault, match=r"need 4 GPUs; 3 are visible"):
        plan_servers(SglangSection(num_servers=2, tensor_parallel=2), ["0", "1", "2"], [1, 2])


def test_visible_gpus():
    assert visible_gpus({}, 2) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3, GPU-ab"}, 8) == ["3", "GPU-ab"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, 8) == []


def test_restarts_are_counted_in_a_window():
    section = SglangSection(
        max_restarts=3, restart_window_s=100, breaker_backoff_s=1, breaker_max_backoff_s=3
    )
    limit = RestartLimit(section)
    assert [limit.next_rest_s(now_s) for now_s in (0, 1, 2, 3)] == [1, 2, 3, None]
    assert limit.next_rest_s(101.5) == 2  # the two first are forgotten
