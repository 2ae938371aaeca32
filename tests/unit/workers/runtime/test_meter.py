"""Meter: rates, shares, overlapping waits; by a clock that the test moves."""

from __future__ import annotations

import pytest

from shared.states import Role
from workers.runtime.meter import Meter, meter_metrics


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_counts_tokens_and_rate_of_the_last_seconds() -> None:
    clock = Clock()
    meter = Meter(clock)
    for _ in range(30):
        clock.now_s += 1
        meter.count_tokens(100)
    reading = meter.reading()
    assert reading.tokens_total == 3000
    assert reading.tokens_per_s == pytest.approx(100, rel=0.05)
    clock.now_s += 100
    assert meter.reading().tokens_per_s == 0
    assert meter.reading().tokens_total == 3000


def test_shares_of_the_time_since_the_start_then_of_the_last_minute() -> None:
    clock = Clock()
    meter = Meter(clock)
    with meter.busy():
        clock.now_s += 6
    with meter.waiting_for(Role.TARGET_FORWARD):
        clock.now_s += 4
    reading = meter.reading()
    assert reading.busy_share == pytest.approx(0.6)
    assert reading.wait_shares[Role.TARGET_FORWARD] == pytest.approx(0.4)
    with meter.waiting_for(Role.TARGET_FORWARD):
        clock.now_s += 58
    reading = meter.reading()
    assert reading.busy_share == pytest.approx(0, abs=0.03)
    assert reading.wait_shares[Role.TARGET_FORWARD] > 0.95
    assert reading.waits_for is Role.TARGET_FORWARD


def test_a_wait_under_way_counts_up_to_now() -> None:
    clock = Clock()
    meter = Meter(clock)
    with meter.waiting_for(Role.GENERATOR):
        clock.now_s += 10
        assert meter.reading().wait_shares[Role.GENERATOR] == pytest.approx(1.0)
        clock.now_s += 10
    assert meter.reading().wait_shares[Role.GENERATOR] == pytest.approx(1.0)


def test_waits_of_several_tasks_at_once_count_once() -> None:
    clock = Clock()
    meter = Meter(clock)
    with meter.waiting_for(Role.BATCHER), meter.waiting_for(Role.BATCHER):
        clock.now_s += 5
    clock.now_s += 5
    assert meter.reading().wait_shares[Role.BATCHER] == pytest.approx(0.5)


def test_a_short_wait_is_no_bottleneck() -> None:
    clock = Clock()
    meter = Meter(clock)
    with meter.waiting_for(Role.BATCHER):
        clock.now_s += 1
    clock.now_s += 50
    assert meter.reading().waits_for is None


def test_waits_are_for_input_or_output_by_the_order_of_the_pipeline() -> None:
    clock = Clock()
    meter = Meter(clock)
    with meter.waiting_for(Role.BATCHER):
        clock.now_s += 3
    with meter.waiting_for(Role.DRAFTER_TRAINER):
        clock.now_s += 7
    metrics = meter_metrics(Role.TARGET_FORWARD, meter.reading())
    assert metrics["wait_input_share"] == pytest.approx(0.3)
    assert metrics["wait_output_share"] == pytest.approx(0.7)
    assert metrics["waits_for_share"] == pytest.approx(0.7)
