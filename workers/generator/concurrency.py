"""How many requests at once are worth it: raised until throughput stops rising.

    DOUBLE  twice as many, while the gain is good; then straight to where it seems to have ended
    CLIMB   a fifth more, while each step brings a gain worth having
    HOLD    keep it, and now and then try a step up or down, since servers change

Pure: a measurement in, a limit out. A measurement counts only when the limit was what bound the
requests. Invariant: 1 <= limit <= most.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_DOUBLE = 2.0
_STEP = 1.2
# Of the gain that would be in proportion: below it, doubling has passed the knee.
_GOOD = 0.4
# Of the proportional gain of a step: below it, the step is not worth its memory and latency.
_WORTH = 0.15
# A step down that loses no more than this is kept.
_FREE_LOSS = 0.02
# A gain or loss below this is measured a second time before it decides anything.
_UNSURE = 0.06
# A fall at an unchanged limit by which the servers have become slower, not the measurement.
_FALL = 0.85
_FIRST_HOLD, _LONGEST_HOLD = 3, 12


@dataclass(frozen=True, slots=True)
class Measurement:
    """Tokens generated per second, and requests in flight on average, at an unchanged limit."""

    tokens_per_s: float
    mean_in_flight: float


class _Phase(StrEnum):
    DOUBLE = "double"
    CLIMB = "climb"
    HOLD = "hold"
    TRY_LOWER = "try_lower"


class ConcurrencyController:
    """Finds the limit; `most` bounds it, `first` is where it starts."""

    def __init__(self, *, first: int, most: int) -> None:
        self._most = most
        self._limit = max(1, min(first, most))
        self._phase = _Phase.DOUBLE
        self._base: tuple[int, float] | None = None  # limit and rate that steps are compared with
        self._is_base_a_guess = False
        self._first_look: float | None = None
        self._held = 0
        self._hold_for = _FIRST_HOLD
        self._num_full_gains = 0
        self._is_lower_next = False

    @property
    def limit(self) -> int:
        return self._limit

    def observe(self, seen: Measurement) -> int:
        """The limit from now on."""
        if seen.mean_in_flight < 0.8 * self._limit or seen.tokens_per_s <= 0:
            return self._limit  # something else was the bound: too few prompts, a pause, no server
        rate = seen.tokens_per_s
        if self._base is None:
            self._base = (self._limit, rate)
            self._raise(_DOUBLE)
        elif self._has_fallen(rate):
            self._back_off(rate)
        elif self._phase is _Phase.DOUBLE:
            self._after_doubling(rate)
        elif self._phase is _Phase.HOLD:
            self._while_holding(rate)
        elif (sure := self._sure(rate)) is not None:
            if self._phase is _Phase.CLIMB:
                self._after_a_step(sure)
            else:
                self._after_trying_lower(sure)
        return self._limit

    def _has_fallen(self, rate: float) -> bool:
        """Whether the servers give less than the smaller of two limits gave before."""
        assert self._base is not None
        limit, base = self._base
        return not self._is_base_a_guess and rate < _FALL * base * min(1.0, self._limit / limit)

    def _back_off(self, rate: float) -> None:
        """What one request gets stays, so fewer of them fill what is left."""
        assert self._base is not None
        limit, base = self._base
        self._guess(min(limit, self._limit) * min(1.0, rate / base), rate)

    def _guess(self, limit: float, rate: float) -> None:
        """Hold `limit`, where about `rate` is expected, and step from there after one look."""
        self._limit = self._clip(limit)
        self._base, self._is_base_a_guess = (self._limit, rate), True
        self._phase, self._first_look = _Phase.HOLD, None
        self._held, self._hold_for = 0, 1

    def _sure(self, rate: float) -> float | None:
        """The rate to decide by; None when it takes a second look."""
        assert self._base is not None
        first, self._first_look = self._first_look, None
        if first is not None:
            return (first + rate) / 2
        if abs(rate / self._base[1] - 1) < _UNSURE:
            self._first_look = rate
            return None
        return rate

    def _after_doubling(self, rate: float) -> None:
        assert self._base is not None
        limit, base = self._base
        growth, gain = self._limit / limit - 1, rate / base - 1
        if gain >= _GOOD * growth:
            self._base = (self._limit, rate)
            self._raise(_DOUBLE)
            return
        # Throughput in proportion up to the knee and flat behind it puts the knee here.
        self._guess(limit * max(1.0, 1 + gain), max(rate, base))
        # Without any gain the knee may as well lie below the smaller of the two.
        self._is_lower_next = gain < _WORTH

    def _after_a_step(self, rate: float) -> None:
        assert self._base is not None
        limit, base = self._base
        growth, gain = self._limit / limit - 1, rate / base - 1
        if gain < _WORTH * growth:
            self._hold(limit, base)
            return
        self._base = (self._limit, rate)
        self._hold_for = _FIRST_HOLD
        self._num_full_gains = self._num_full_gains + 1 if gain >= _GOOD * growth else 0
        is_fast = self._num_full_gains >= 2
        self._phase = _Phase.DOUBLE if is_fast else _Phase.CLIMB
        self._raise(_DOUBLE if is_fast else _STEP)

    def _after_trying_lower(self, rate: float) -> None:
        assert self._base is not None
        limit, base = self._base
        if rate >= (1 - _FREE_LOSS) * base:
            self._base = (self._limit, max(rate, base))
            self._lower()
        else:
            self._hold(limit, base)

    def _while_holding(self, rate: float) -> None:
        assert self._base is not None
        limit, base = self._base
        self._base = (limit, rate if self._is_base_a_guess else (base + rate) / 2)
        self._is_base_a_guess = False
        self._held += 1
        if self._held < self._hold_for:
            return
        if self._is_lower_next and limit > 1:
            self._lower()
        else:
            self._num_full_gains = 0
            self._phase = _Phase.CLIMB
            self._raise(_STEP)
        self._is_lower_next = not self._is_lower_next

    def _hold(self, limit: int, rate: float) -> None:
        self._limit, self._base = limit, (limit, rate)
        self._phase, self._first_look = _Phase.HOLD, None
        self._held = 0
        self._hold_for = min(_LONGEST_HOLD, 2 * self._hold_for)

    def _raise(self, factor: float) -> None:
        """A higher limit to be measured; holds where there is none."""
        assert self._base is not None
        higher = min(self._most, max(self._limit + 1, round(self._limit * factor)))
        if higher == self._limit:
            self._hold(*self._base)
        else:
            self._limit = higher

    def _lower(self) -> None:
        lower = self._clip(min(self._limit - 1, self._limit / _STEP))
        if lower == self._limit:
            assert self._base is not None
            self._hold(*self._base)
        else:
            self._limit, self._phase = lower, _Phase.TRY_LOWER

    def _clip(self, limit: float) -> int:
        return max(1, min(self._most, round(limit)))
