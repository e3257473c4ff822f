"""What rounds measured and how it is judged; ``load`` and ``load_long`` give stored runs as tables.

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
    """Stored runs as a table: one row per round, one column per metric; docs/results.md tells the columns.

    ``paths`` are run directories or folders of them.
    """
    from pytest_flagperf.results import frames

    return frames.load(paths)


def load_long(paths: str | Path | Iterable[str | Path]) -> pandas.DataFrame:
    """The same figures with one row per round and metric: its value, unit, direction and how it was measured."""
    from pytest_flagperf.results import frames

    return frames.load_long(paths)
