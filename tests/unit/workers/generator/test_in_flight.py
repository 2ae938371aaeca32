"""Slots for requests, and the measurement of what comes of them."""

import asyncio
import resource

from workers.generator.concurrency import ConcurrencyController
from workers.generator.in_flight import RequestSlots, ThroughputWindow, affordable_requests


def test_requests_of_the_old_limit_are_not_measured():
    window = ThroughputWindow(4, 0.0)
    window.change(4, 0.0)
    for at_s in (1.0, 2.0, 3.0, 4.0):
        assert window.end(1000, at_s) is None  # let pass
    for at_s in (5.0, 6.0, 7.0):
        assert window.end(10, at_s) is None
    seen = window.end(10, 8.0)
    assert seen.tokens_per_s == 10.0 and seen.mean_in_flight == 4.0


def test_a_measurement_takes_some_seconds_and_averages_what_is_in_flight():
    window = ThroughputWindow(1, 0.0)
    window.restart(1, 0.0, settled=True)
    window.change(2, 0.0)
    assert window.end(100, 1.0) is None
    window.change(4, 2.0)
    seen = window.end(100, 4.0)
    assert seen.tokens_per_s == 50.0 and seen.mean_in_flight == 3.0


async def test_slots_follow_the_controller():
    now_s = [0.0]
    slots = RequestSlots(ConcurrencyController(first=2, most=8), lambda: now_s[0])
    await slots.acquire()
    await slots.acquire()
    third = asyncio.create_task(slots.acquire())
    await asyncio.sleep(0)
    assert not third.done() and slots.in_flight == 2
    slots.release(None)
    await third
    for _ in range(4):  # two pass, two are measured: 2 requests in 2 s, then the limit doubles
        now_s[0] += 1.0
        slots.release(10)
        await slots.acquire()
    assert slots.limit == 4 and slots.in_flight == 2
    slots.forget()
    await slots.acquire()
    await slots.acquire()
    assert slots.in_flight == 4


def test_each_request_has_a_connection(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    assert [affordable_requests(wanted) for wanted in (8, 896, 897, 2048)] == [8, 896, 896, 896]
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert affordable_requests(2048) == 2048
