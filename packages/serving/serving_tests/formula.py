"""A server whose model is a formula, and which has the faults that the measurement must detect.

python -m serving_tests.formula --port=8000 --model=formula --fault=cached
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import AsyncGenerator, Sequence

from common.serving.server import arguments, serve

NAME, VOCABULARY = "formula", 256
TOKEN_S = 0.002
_PEAK = 0.9
"""The probability of the most probable token; the others share the rest."""


def following(tokens: Sequence[int], factor: int = 7) -> int:
    """Return the most probable token after these."""
    return (sum(tokens[-3:]) * factor + 11) % VOCABULARY


def log_probabilities(tokens: Sequence[int], factor: int = 7) -> list[float]:
    """Return the log probability of each token but the first."""
    other = math.log((1 - _PEAK) / (VOCABULARY - 1))
    return [
        math.log(_PEAK) if tokens[place] == following(tokens[:place], factor) else other
        for place in range(1, len(tokens))
    ]


class Formula:
    """An engine that computes tokens one at a time, and its faults."""

    def __init__(self, fault: str, token_s: float) -> None:
        self._fault, self._token_s = fault, token_s
        self._factor = 5 if fault == "wrong" else 7
        self._kept: dict[tuple[int, ...], list[int]] = {}
        self._active = self._answered = 0

    async def answer(self, prompt: Sequence[int], tokens: int) -> AsyncGenerator[list[int], None]:
        self._answered += 1
        kept = self._kept.setdefault(tuple(prompt), [])
        if self._fault == "cached" and len(kept) == tokens:
            for token in kept:
                yield [token]
            return
        if self._fault == "refuses":
            raise RuntimeError("out of memory")
        self._active += 1
        try:
            text, new = list(prompt), list[int]()
            is_cut = self._fault == "shorter" and sum(prompt) % 3 == 0
            for number in range(tokens // 2 if is_cut else tokens):
                await self._strike(number)
                text.append(following(text, self._factor_under_load()))
                new.append(text[-1])
                yield [text[-1]]
            self._kept[tuple(prompt)] = new
        finally:
            self._active -= 1

    async def log_probabilities(self, tokens: Sequence[int]) -> list[float]:
        if self._fault == "no_loss":
            raise RuntimeError("no log probabilities here")
        return log_probabilities(tokens, self._factor)

    def _factor_under_load(self) -> int:
        worse = self._fault == "worse" and self._active > 2
        return 5 if worse or (self._fault == "tires" and self._answered > 45) else self._factor

    async def _strike(self, number: int) -> None:
        sleepy = self._fault == "sleeps" and self._active > 1
        await asyncio.sleep(self._token_s * (8 * self._active if sleepy else 1))
        if number == 3 and self._fault == "stalls":
            await asyncio.sleep(3600)
        if number == 3 and self._fault == "exits" and self._answered > 20:
            print("the device is gone", flush=True)
            os._exit(3)


def command(port: int, fault: str = "", token_s: float = TOKEN_S) -> list[str]:
    program = [sys.executable, "-m", "serving_tests.formula", f"--port={port}", f"--model={NAME}"]
    return [*program, f"--fault={fault}", f"--token-s={token_s}"]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--fault", default="")
    parser.add_argument("--token-s", type=float, default=TOKEN_S)
    options = parser.parse_args()
    if options.fault == "no_start":
        sys.exit("no device found")
    serve(lambda: Formula(options.fault, options.token_s), options.port, options.model)


if __name__ == "__main__":
    main()
