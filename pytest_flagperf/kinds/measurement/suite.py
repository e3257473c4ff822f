"""A suite.toml of a measurement."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pytest_flagperf.catalog.suite import BANDWIDTHS, DIRECTIONS, PRECISIONS, Goal, MetricTable, SuiteFigure
from pytest_flagperf.catalog.toml_reader import choice, where
from pytest_flagperf.stored.plan import BEST, LAST, WORST

UNITS = ("B/s", "FLOP/s", "OP/s", "1/s", "s", "bytes", "share", "x")
"""The units of figures, which reports scale."""
PICKS = (BEST, WORST, LAST)
_PEAKS = (*BANDWIDTHS, *(f"peak_tflops.{precision}" for precision in PRECISIONS))
FIGURE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class MeasurementScale:
    data_dir: bool = False
    """Whether the suite uses the data directory, if it is given."""
    preflight: tuple[str, ...] = ()
    """Settings of a short measurement of all devices before a run, as with --set; empty: the suite takes no part."""


@dataclass(frozen=True)
class MeasurementTable:
    """A suite.toml with ``kind = "measurement"``."""

    kind: str
    """measurement."""
    figures: Mapping[str, SuiteFigure]
    """A table for each figure; the first is the suite's metric."""
    scales: Mapping[str, MeasurementScale]
    """One table for each scale: reference and small."""
    common: tuple[str, ...] = ()
    """The folders of suites/common that the suite uses."""
    least_ranks: int = 1
    """The fewest processes that can measure."""
    case_key: str = ""
    """The config key that names a training, MODEL[:FRAMEWORK[:NxP]], whose code and config the ranks get too."""
    memory: ClassVar[None] = None
    sample_unit: ClassVar[str] = ""
    goal: ClassVar[Goal | None] = None
    parallel: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def metric(self) -> MetricTable:
        name, figure = next(iter(self.figures.items()))
        return MetricTable(name, figure.direction, figure.unit, ())

    def problems(self, file: Path) -> Iterator[str]:
        if not self.figures:
            yield f"{where(file, 'figures')}: figures: expected at least one, as in [figures.copy_bandwidth]"
        if self.least_ranks < 1:
            yield f"{where(file, 'least_ranks')}: least_ranks is {self.least_ranks}; expected at least 1"
        for name, figure in self.figures.items():
            at = f"figures.{name}"
            for key, allowed in (("unit", UNITS), ("direction", DIRECTIONS), ("pick", PICKS)):
                yield from choice(file, f"{at}.{key}", getattr(figure, key), allowed)
            if figure.peak is not None:
                yield from choice(file, f"{at}.peak", figure.peak, _PEAKS)
            if not FIGURE_NAME.fullmatch(name):
                yield f"{where(file, 'figures', name)}: {at}: invalid name; expected letters, digits and _"
            if figure.pick == LAST and not figure.over:
                yield f'{where(file, "figures", name, "pick")}: {at}: pick = "{LAST}" needs over'
            if not 0 < figure.variation <= 1:
                got = f"{at}.variation is {figure.variation:g}"
                yield f"{where(file, 'figures', name, 'variation')}: {got}; expected a share above 0 and at most 1"
