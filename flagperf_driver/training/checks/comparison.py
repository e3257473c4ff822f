"""What the loop asks of a framework that compares a vendor's steps with the suite's own."""

from __future__ import annotations

from typing import Any, Protocol

SHORTEST, SHARE = 120, 1.0
"""The mean gap between two compared steps (``DrawnSteps``): a comparison takes as long as two steps, so 2 % at most."""


class Comparison(Protocol):
    """Compares one micro-step of the vendor's steps with the suite's own, before the step's real batch is trained."""

    compared: int
    """The number of compared steps."""

    def begin(self, key: str) -> None:
        """Replace the batch of the step that begins by one for the comparison; ``key`` selects how."""

    def finish(self, step: int) -> Any:
        """Run the suite's own micro-step, compare, restore all states, and return the step's own batch."""
