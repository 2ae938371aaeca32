"""The number of requests at once, against simulated servers."""

import random
from statistics import median

import pytest

from workers.generator.concurrency import ConcurrencyController, Measurement


def run(controller, rate, steps, *, noise=0.01, seed=1):
    """The limits tried while a server gives `rate(limit)` tokens/s."""
    chance = random.Random(seed)
    limits = []
    for _ in range(steps):
        limits.append(controller.limit)
        seen = rate(controller.limit) * (1 + chance.gauss(0, noise))
        controller.observe(Measurement(seen, controller.limit))
    return limits


def saturating(at):
    return lambda limit: 100.0 * min(limit, at)


@pytest.mark.parametrize("knee", [20, 40, 100, 300, 700, 1500])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_settles_where_throughput_stops_rising(knee, seed):
    controller = ConcurrencyController(first=64, most=4096)
    limits = run(controller, saturating(knee), 60, seed=seed)
    settled = limits[20:]
    assert 0.8 * knee <= median(settled) <= 1.2 * knee
    # the rest are steps up and down that look for a change
    assert sum(0.8 * knee <= limit <= 1.2 * knee for limit in settled) >= 0.75 * len(settled)


@pytest.mark.parametrize(("before", "after"), [(300, 100), (100, 600), (500, 250)])
def test_it_follows_a_server_that_changes(before, after):
    controller = ConcurrencyController(first=64, most=4096)
    run(controller, saturating(before), 25)
    limits = run(controller, saturating(after), 60)
    assert 0.8 * after <= median(limits[30:]) <= 1.2 * after


def test_a_fall_is_answered_at_once():
    controller = ConcurrencyController(first=64, most=4096)
    run(controller, saturating(300), 25)
    assert max(run(controller, saturating(100), 5)[2:]) <= 1.5 * 100


def test_a_server_without_a_knee_is_used_well():
    most = 2048
    limits = run(
        ConcurrencyController(first=64, most=most), lambda limit: 1e5 * limit / (limit + 200), 60
    )
    assert median(limits[30:]) / (median(limits[30:]) + 200) > 0.8


def test_it_never_leaves_its_bounds():
    controller = ConcurrencyController(first=64, most=100)
    assert max(run(controller, lambda limit: 10.0 * limit, 40)) == 100
    assert median(run(controller, lambda limit: 10.0 * limit, 20)) == 100
    single = ConcurrencyController(first=64, most=1)
    assert set(run(single, saturating(5), 10)) == {1}
    low = ConcurrencyController(first=2, most=1000)
    assert min(run(low, saturating(1), 40)) == 1


def test_what_did_not_fill_the_limit_is_no_measurement():
    controller = ConcurrencyController(first=64, most=4096)
    controller.observe(Measurement(100.0, 10.0))
    controller.observe(Measurement(0.0, 64.0))
    assert controller.limit == 64
