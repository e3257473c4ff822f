"""Sum up what a host's ranks and its sampler wrote in a round, so that the long files can stay there.

The agent sums up its own files when the controller asks. The controller sums up the files of a few hosts again, which
it draws after it has all summaries, and compares: ``summarize`` is the same function on both sides.
"""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from flagperf_driver.layout import DEVICE_SERIES, HOST_SERIES, LOAD_SERIES, MILESTONE_TIMES, MONITORS, rank_log
from flagperf_driver.node.logs.ranges import DroppedReadings
from flagperf_driver.node.logs.ranklog import RankLog, read_rank
from flagperf_driver.node.logs.sample_files import read_samples
from flagperf_driver.node.logs.samples import HostWindow, Samples, Series
from flagperf_driver.node.manifest import checksum
from flagperf_driver.perflog import number
from flagperf_driver.target import Target

SHORT_FILES = (MILESTONE_TIMES, MONITORS)
"""The files that the controller gets beside the summary, as they are."""
WHOLE_ROUND = (-math.inf, math.inf)
"""The times of the window that each summary has."""
_LONG_FILES = (HOST_SERIES, DEVICE_SERIES, LOAD_SERIES)
_POINTS = 40
_NOT_DRAWN = ("energy", "memory_total")
_NOT_SUMMED_UP = ("path", "drawings")


@dataclass(frozen=True)
class Request:
    """What a host's summary depends on besides its files; times are by the controller's clock."""

    ranks: Sequence[int]
    target: Target
    warmup: int = 0
    sample_unit: str = ""
    windows: Sequence[Sequence[float]] = ()
    """The begin and the end of each time of which the figures of the samples are needed."""
    clock_offset_s: float = 0.0
    """The host's clock minus the controller's."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Request:
        return cls(**{**body, "target": Target(**body["target"])})


@dataclass(frozen=True)
class LongFile:
    """A file that stays on its host."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class DrawnSeries:
    """A quantity for charts: the mean of each of so many equal parts of its time, in words; "nan" without a reading."""

    unit: str
    start: float
    step_s: float
    means: str


@dataclass(frozen=True)
class HostSummary:
    """What a host's ranks and its sampler wrote, without curves."""

    ranks: tuple[RankLog, ...]
    windows: tuple[HostWindow, ...]
    """Of each time that was requested, and of the whole round."""
    files: Mapping[str, LongFile] = field(default_factory=dict)
    dropped: tuple[DroppedReadings, ...] = ()
    host: Mapping[str, DrawnSeries] = field(default_factory=dict)
    devices: Mapping[str, Mapping[str, DrawnSeries]] = field(default_factory=dict)


def summarize(folder: Path, request: Request) -> Mapping[str, Any]:
    """Return the summary of a host's folder as JSON, without default values."""
    ranks = [
        read_rank(folder / rank_log(rank), rank, request.target, request.warmup, request.sample_unit)
        for rank in request.ranks
    ]
    samples = read_samples(folder, _report(folder / MONITORS), request.clock_offset_s)
    names = [*map(rank_log, request.ranks), *_LONG_FILES]
    summary = HostSummary(
        tuple(map(_without_curves, ranks)),
        tuple(samples.window(*times) for times in [*request.windows, WHOLE_ROUND]),
        {name: digest_of(folder / name) for name in names if (folder / name).is_file()},
        samples.dropped,
        _drawn(samples.host),
        {str(index): _drawn(series) for index, series in samples.devices.items()},
    )
    body: Mapping[str, Any] = to_json(summary)
    return body


def _without_curves(log: RankLog) -> RankLog:
    last_lines = () if log.finished is not None else log.tail()
    return replace(log, is_summary=True, steps=log.steps[-1:], evaluations=(), last_lines=last_lines)


def _report(path: Path) -> Mapping[str, Any]:
    try:
        report = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def digest_of(path: Path) -> LongFile:
    """Return the length and the SHA-256 of a file."""
    return LongFile(path.stat().st_size, checksum(path, "sha256"))


def to_json(value: Any) -> Any:
    """Return the value in JSON's types, dataclasses without default values; NaN and infinities as strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if is_dataclass(value):
        return {name: to_json(item) for name, item in _set_fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def _set_fields(value: Any) -> Iterator[tuple[str, Any]]:
    for one in fields(value):
        if not one.init or (isinstance(value, RankLog) and one.name in _NOT_SUMMED_UP):
            continue
        default = one.default if one.default_factory is MISSING else one.default_factory()
        item = getattr(value, one.name)
        if item != default:
            yield one.name, item


# -- charts --------------------------------------------------------------------------------------------------


def _drawn(by_name: Mapping[str, Series]) -> dict[str, DrawnSeries]:
    return {name: _thinned(series) for name, series in by_name.items() if name not in _NOT_DRAWN}


def _thinned(series: Series) -> DrawnSeries:
    start, end = series.times[0], series.times[-1]
    step_s = (end - start) / _POINTS
    sums, counts = [0.0] * _POINTS, [0] * _POINTS
    for when, value in zip(series.times, series.values):
        part = min(int((when - start) / step_s), _POINTS - 1) if step_s > 0 else 0
        sums[part] += value
        counts[part] += 1
    means = (f"{total / count:.4g}" if count else "nan" for total, count in zip(sums, counts))
    return DrawnSeries(series.unit, start, step_s, " ".join(means))


def series_of(drawn: Mapping[str, DrawnSeries]) -> dict[str, Series]:
    """Return series of the means."""
    found = {}
    for name, one in drawn.items():
        points = [(one.start + (part + 0.5) * one.step_s, number(mean)) for part, mean in enumerate(one.means.split())]
        known = [point for point in points if all(map(math.isfinite, point))]
        if known:
            found[name] = Series(name, one.unit, [when for when, _ in known], [value for _, value in known])
    return found


def with_summary(but_series: Samples, summary: HostSummary, *, drawn: bool) -> Samples:
    """Return the samples of a host that summed them up; ``but_series`` has what its sampler's report says.

    Only if they are ``drawn``, they have series; figures need none.
    """
    whole = next(window for window in summary.windows if (window.start, window.end) == WHOLE_ROUND)
    by_device = summary.devices.items() if drawn else ()
    return replace(
        but_series,
        host=series_of(summary.host) if drawn else {},
        devices={int(index): series_of(its) for index, its in by_device if index.isdecimal()},
        gaps=whole.gaps,
        dropped=summary.dropped,
        is_partial=True,
        windows=summary.windows,
    )
