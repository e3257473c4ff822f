"""Check a measurement by its answers: parts of its results, kept at moments and places drawn after each iteration.

The data are known to the host without a framework: a block of random numbers, over and over. Each iteration has other
data than the one before, so that a result left from another iteration is wrong. What was kept is compared with numpy
after the last window: a part of the work, or an iteration that did nothing, does not pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

SHIFTS = 5
"""The data of an iteration begin at one of so many places."""
_LENGTH = 999_983
"""The numbers of a block: a prime, so that the rows of a matrix differ."""
_CHUNK = 1 << 20
_WIDTH = 64

Array = np.ndarray[Any, Any]


class Numbers:
    """A block of random numbers of a type, which begins again where it ends."""

    def __init__(self, seed: list[int], dtype: torch.dtype, length: int = _LENGTH, whole: int = 0) -> None:
        """Draw normal numbers, or for ``whole`` whole ones of at most this size, whose sum is 0."""
        generator = np.random.default_rng(seed)
        if whole:
            half = generator.integers(-whole, whole + 1, length // 2)
            drawn = generator.permutation(np.concatenate([half, -half, np.zeros(length % 2, half.dtype)]))
        elif dtype.is_floating_point:
            drawn = generator.standard_normal(length, np.float64 if dtype is torch.float64 else np.float32)
        else:
            limits = torch.iinfo(dtype)
            drawn = generator.integers(limits.min, limits.max + 1, length)
        self._block = torch.from_numpy(drawn).to(dtype)
        self._values: Array = self._block.double().numpy()

    def fill(self, array: torch.Tensor) -> torch.Tensor:
        """Write the numbers into an array of one dimension, from its first place on; return it."""
        repeated = self._block.repeat(-(-_CHUNK // len(self._block)))
        for start in range(0, len(array), len(repeated)):
            array[start : start + len(repeated)].copy_(repeated[: len(array) - start])
        return array

    def at(self, places: Array) -> Array:
        """Return the numbers at these places of a filled array."""
        return self._values[places % len(self._values)]

    def rows(self, size: int) -> list[Array]:
        """Return the rows of a filled matrix of size x size, without a copy of it."""
        repeated = np.resize(self._values, len(self._values) + size)
        return [repeated[start : start + size] for start in (np.arange(size) * size % len(self._values))]

    def sum(self, start: int, stop: int) -> float:
        """Return the sum of a part of a filled array, of whole numbers whose sum is 0."""
        first, last = start % len(self._values), stop % len(self._values)
        return float(self._values[:last].sum() - self._values[:first].sum())


class Samples:
    """Parts of the results of one point, each with the number of its iteration and its place."""

    def __init__(self, device: torch.device, width: int = _WIDTH, step: int = 1) -> None:
        """Keep ``width`` numbers, from a multiple of ``step`` on."""
        self._device, self._width, self._step = device, width, step
        self._kept: list[tuple[int, Array, torch.Tensor]] = []
        self.iteration = 0

    def after(self, result: torch.Tensor, count: int) -> None:
        """Keep a part of the iteration's result, which must have so many numbers, or keep nothing.

        Of n iterations about the square root of 2 n are kept: enough of a few slow ones, and not too many of fast ones.
        """
        if below(1 + len(self._kept)) == 0:
            width = min(self._width, count)
            place = self._step * below((count - width) // self._step + 1)
            part = result.view(-1)[place : place + width].to(self._device, copy=True, non_blocking=True)
            self._kept.append((self.iteration, np.arange(place, place + width), part))
        self.iteration += 1

    def check(
        self,
        work: str,
        expected: Callable[[int, Array], Array | float],
        allowed: float = 0.0,
        weights: Array | None = None,
    ) -> None:
        """Raise an error if a kept part differs from ``expected(iteration, places)``, or its sum with these weights.

        ``allowed`` is a share of the size of the part.
        """
        for iteration, places, part in self._kept:
            got: Array = part.cpu().double().numpy()
            complete, bound = got.shape == places.shape, allowed * float(np.linalg.norm(got))
            should = np.asarray(expected(iteration, places))
            if weights is not None and complete:
                got = np.asarray(got @ weights)
            if not complete or not np.abs(got - should).max() <= bound:
                raise RuntimeError(
                    f"{work}: wrong answer of iteration {iteration} at place {places[0]}: got {_begin(got)}; expected"
                    f" {_begin(should)}. The device, its libraries or the vendor's code did not do the whole work"
                )


def below(bound: int) -> int:
    """Return an unpredictable number from 0 to ``bound`` - 1."""
    return int.from_bytes(os.urandom(8), "little") % bound


def signs(count: int) -> Array:
    """Return so many unpredictable signs, 1 or -1."""
    return 2.0 * (np.frombuffer(os.urandom(count), np.uint8) & 1) - 1


def _begin(numbers: Array) -> str:
    return " ".join(f"{number:.9g}" for number in numbers.reshape(-1)[:4]) or "nothing"
