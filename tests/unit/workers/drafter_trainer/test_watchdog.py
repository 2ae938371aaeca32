"""When a loss counts as diverging."""

from workers.drafter_trainer.watchdog import WINDOW_STEPS, LossWatchdog


def feed(watchdog: LossWatchdog, losses: list[float]) -> list[str]:
    return [said for loss in losses if (said := watchdog.observe(loss)) is not None]


def test_a_falling_loss_is_no_divergence():
    assert feed(LossWatchdog(2.0, 3), [10 / (1 + n) for n in range(200)]) == []


def test_a_rising_mean_is_said_once_for_a_window():
    watchdog = LossWatchdog(2.0, 3)
    said = feed(watchdog, [1.0] * WINDOW_STEPS + [5.0] * WINDOW_STEPS)
    assert len(said) == 1
    assert "trainer.divergence_factor is 2" in said[0]


def test_a_single_spike_is_not_a_divergence():
    assert feed(LossWatchdog(2.0, 3), [1.0] * 30 + [15.0] + [1.0] * 30) == []


def test_nonfinite_steps_up_to_the_limit():
    watchdog = LossWatchdog(2.0, 3)
    assert watchdog.observe_nonfinite() is None
    assert watchdog.observe_nonfinite() is None
    assert "3 steps" in (watchdog.observe_nonfinite() or "")


def test_a_restored_watchdog_says_what_the_original_would():
    losses = [1.0] * WINDOW_STEPS + [4.0] * WINDOW_STEPS
    whole = LossWatchdog(2.0, 3)
    first, second = LossWatchdog(2.0, 3), LossWatchdog(2.0, 3)
    assert feed(first, losses[:25]) == feed(whole, losses[:25])
    second.restore(first.to_dict())
    assert feed(second, losses[25:]) == feed(whole, losses[25:]) != []
