"""An engine without a model, whose delays are known: the client measures them to test itself."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Sequence

from common.serving.server import arguments, serve

_TIMER_S = 0.002
"""A timer of an event loop is late by up to a millisecond, which would count as the client's error."""


class Echo:
    """Answers with the prompt's tokens, again and again; each token has a time since the request got a slot."""

    def __init__(self, first_s: float, token_s: float, slots: int = sys.maxsize) -> None:
        self._first_s, self.token_s, self._slots = first_s, token_s, asyncio.Semaphore(slots)

    async def answer(self, prompt: Sequence[int], tokens: int) -> AsyncGenerator[list[int], None]:
        async with self._slots:
            begin = time.perf_counter()
            for number in range(tokens):
                # The times do not depend on each other, so that a late token does not delay those after it.
                due = begin + self._first_s + number * self.token_s
                await asyncio.sleep(max(due - time.perf_counter() - _TIMER_S, 0.0))
                while time.perf_counter() < due:
                    await asyncio.sleep(0)
                yield [prompt[number % len(prompt)]]

    async def log_probabilities(self, tokens: Sequence[int]) -> list[float]:
        return [0.0] * (len(tokens) - 1)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--first-s", type=float, default=0.0)
    parser.add_argument("--token-s", type=float, default=0.0)
    parser.add_argument("--slots", type=int, default=sys.maxsize, help="the most requests that are answered at once")
    options = parser.parse_args()
    serve(lambda: Echo(options.first_s, options.token_s, options.slots), options.port, options.model)


if __name__ == "__main__":
    main()
