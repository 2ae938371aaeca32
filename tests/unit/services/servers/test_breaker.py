"""The circuit breaker: rests that grow, and exactly one probe."""

from services.servers.breaker import Circuit, CircuitBreaker


def breaker():
    return CircuitBreaker(max_failures=3, backoff_s=1.0, max_backoff_s=5.0)


def opened():
    one = breaker()
    assert [one.fail(10.0, is_probe=False) for _ in range(3)] == [False, False, True]
    return one


def test_it_opens_after_failures_in_a_row_only():
    one = breaker()
    for _ in range(5):
        one.fail(0.0, is_probe=False)
        one.fail(0.0, is_probe=False)
        one.succeed()
    assert one.state is Circuit.CLOSED and one.admits(0.0)
    assert opened().state is Circuit.OPEN and not opened().admits(10.9)


def test_one_probe_goes_and_no_second_one_beside_it():
    one = opened()
    assert one.admits(11.0) and one.begin(11.0)
    assert one.state is Circuit.HALF_OPEN
    assert not one.admits(11.0) and not one.admits(1e9)
    one.succeed()
    assert one.state is Circuit.CLOSED and not one.begin(11.0)


def test_rests_double_up_to_the_longest():
    one, now_s, rests = opened(), 10.0, []
    for _ in range(5):
        rests.append(one.retry_at_s - now_s)
        now_s = one.retry_at_s
        assert one.begin(now_s)
        assert one.fail(now_s, is_probe=True)
    assert rests == [1.0, 2.0, 4.0, 5.0, 5.0]
    one.begin(one.retry_at_s)
    one.succeed()
    for _ in range(3):
        one.fail(100.0, is_probe=False)
    assert one.retry_at_s == 101.0


def test_what_was_under_way_when_it_opened_changes_nothing():
    one = opened()
    assert not one.fail(10.5, is_probe=False)
    assert one.retry_at_s == 11.0
    one.begin(11.0)
    assert not one.fail(11.1, is_probe=False) and one.state is Circuit.HALF_OPEN


def test_a_probe_without_a_verdict_makes_room_for_another():
    one = opened()
    one.abandon(10.1, is_probe=False)
    assert one.state is Circuit.OPEN
    one.begin(11.0)
    one.abandon(11.2, is_probe=True)
    assert one.admits(11.2) and one.begin(11.2)
