"""Credit of one direction of a channel, as a pure object.

The receiving end grants `max_messages` and `max_bytes`; a message holds its share from the send
until the receiver releases it. A message larger than the whole byte credit passes alone, once
nothing else is outstanding, so that no size can deadlock a link.
"""

from __future__ import annotations

from services.links.identity import LinkLimits


class CreditWindow:
    """Outstanding messages by number. Invariant: `num_bytes` is their sum."""

    def __init__(self, limits: LinkLimits) -> None:
        self.limits = limits
        self.num_bytes = 0
        self._outstanding: dict[int, int] = {}

    @property
    def num_messages(self) -> int:
        return len(self._outstanding)

    def admits(self, num_bytes: int) -> bool:
        """Whether a message of `num_bytes` may go now."""
        if not self._outstanding:
            return True
        return (
            self.num_messages < self.limits.max_messages
            and self.num_bytes + num_bytes <= self.limits.max_bytes
        )

    def take(self, number: int, num_bytes: int) -> None:
        """Message `number` holds `num_bytes` from now on; it must be admitted and new."""
        assert self.admits(num_bytes) and number not in self._outstanding
        self._outstanding[number] = num_bytes
        self.num_bytes += num_bytes

    def give_back(self, number: int) -> bool:
        """Message `number` is released; False when it held nothing (never sent, or twice)."""
        num_bytes = self._outstanding.pop(number, None)
        if num_bytes is None:
            return False
        self.num_bytes -= num_bytes
        return True
