"""Results of rounds and their verdicts; ``load`` and ``load_long`` return stored runs as tables.

>>> from pytest_flagperf.results import load
>>> load("reports").groupby("case")["p_core"].median()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

__all__ = ["load", "load_long"]


def load(paths: str | Path | Iterable[str | Path]) -> pandas.DataFrame:
    """Return stored runs as a table with one row per round and one column per metric (columns: docs/results.md).

    ``paths`` are run directories or folders of them.
    """
    from pytest_flagperf.results import frames

    return frames.load(paths)


def load_long(paths: str | Path | Iterable[str | Path]) -> pandas.DataFrame:
    """Return a table with one row per round and metric: value, unit, direction and how it was measured."""
    from pytest_flagperf.results import frames

    return frames.load_long(paths)
