"""The original's names of logged values and our names, in one table.

Ranks write both names, readers accept either. In the table ``{metric}`` is the suite's metric, with FlagPerf's name
on the left and our name on the right; ``{unit}`` is the unit that the suite counts, such as ``images``; ``{rate}`` is
FlagPerf's name of a step's throughput in that unit.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, NamedTuple

from flagperf_driver import events

_PROGRESS = (("global_steps", "step"), ("num_trained_samples", "samples"))
_EVALUATION = (*_PROGRESS, ("eval_{metric}", "{metric}"))
TABLE: Mapping[str, tuple[tuple[str, str], ...]] = {
    events.STEP_END: (*_PROGRESS, ("{rate}", "throughput")),
    events.INIT_EVALUATION: _EVALUATION,
    events.EVALUATE: _EVALUATION,
    events.FINISHED: (
        ("global_steps", "steps"),
        ("num_trained_samples", "samples"),
        ("train_time", "raw_train_time"),
        ("training_{unit}_per_second", "p_whole"),
        ("throughput(ips)_raw", "p_whole"),
        ("throughput(ips)_no_eval", "p_train"),
        ("throughput(ips)_pure_compute", "p_core"),
        ("final_{metric}", "final_metrics.{metric}"),
    ),
}
"""By event: FlagPerf's name and our name of each value. Values with the same name in both are not listed."""

_RATES = {"sequences": "seq/s", "images": "img/s"}
_FINAL = "final_metrics."
_ALSO_READ: tuple[tuple[str, str, str], ...] = (
    (events.STEP_END, r"\w+/s", "throughput"),
    (events.EVALUATE, r"eval_(\w+)", "{}"),
    (events.INIT_EVALUATION, r"eval_(\w+)", "{}"),
    (events.FINISHED, r"training_\w+_per_second", "p_whole"),
    # The original's programs write ips or sps, and some misspell "throughput".
    (events.FINISHED, r"throu(?:gh|hg)put\([is]ps\)_raw", "p_whole"),
    (events.FINISHED, r"throu(?:gh|hg)put\([is]ps\)_no_eval", "p_train"),
    (events.FINISHED, r"throu(?:gh|hg)put\([is]ps\)_pure_compute", "p_core"),
    (events.FINISHED, r"final_(?!loss$|metrics$)(\w+)", _FINAL + "{}"),
)
"""Event, pattern and our name, for the names that FlagPerf's other programs use instead of the table's."""

Value = Mapping[str, Any]


class Names:
    """The table for one suite: its metric, FlagPerf's name of that metric, and the unit that the suite counts."""

    def __init__(self, metric: str = "", original_metric: str = "", unit: str = "") -> None:
        self._metrics = {original_metric: metric} if original_metric else {}
        words = {"unit": unit, "rate": _RATES.get(unit, unit + "/s")}
        theirs, ours = {**words, "metric": original_metric or metric}, {**words, "metric": metric}
        self._ours = {
            event: {left.format(**theirs): right.format(**ours) for left, right in rows}
            for event, rows in TABLE.items()
        }

    def with_original_names(self, event: str, value: Value) -> Value:
        """Return a record's value with FlagPerf's names added; names that the record has already are kept."""
        known = self._ours.get(event)
        if known is None:
            return value
        both = dict(value)
        for theirs, ours in known.items():
            logged = _get(value, ours)
            if logged is not _MISSING:
                both.setdefault(theirs, logged)
        return both

    def our_name(self, event: str, name: str) -> str | None:
        """Return our name for FlagPerf's name; None if the event has no such original name."""
        known = self._ours[event]
        if name in known:
            return known[name]
        if name in known.values():
            return None
        for where, pattern, ours in _ALSO_READ:
            match = re.fullmatch(pattern, name) if where == event else None
            if match:
                return self._own_metric(ours.format(*match.groups()))
        return None

    def _own_metric(self, name: str) -> str:
        metric = name[len(_FINAL) :] if name.startswith(_FINAL) else name
        return name[: len(name) - len(metric)] + self._metrics.get(metric, metric)


class NamePair(NamedTuple):
    """A logged value that a record has under both names."""

    event: str
    theirs: str
    theirs_value: Any
    ours: str
    ours_value: Any

    def __str__(self) -> str:
        return f"{self.theirs} = {self.theirs_value!r:.40} and {self.ours} = {self.ours_value!r:.40} in {self.event}"


class LogTranslator:
    """Translates the records of one log to our names, and records which names the log uses."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.original = False
        """True if a value has only FlagPerf's name: FlagPerf wrote this log."""
        self.has_both = False
        """True if a value has both names."""
        self.differences = 0
        """The number of values that differ between the two names."""
        self.difference: NamePair | None = None
        """The first difference."""
        self._layouts: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = {}

    def translate(self, event: str, value: Value) -> Value:
        """Return the value with our names only."""
        if event not in TABLE:
            return value
        # Nearly all records of an event have the same fields.
        layout = (event, *value)
        renamed = self._layouts.get(layout)
        if renamed is None:
            renamed = self._renamed(event, value)
            if len(self._layouts) < _MAX_LAYOUTS:
                self._layouts[layout] = renamed
        if not renamed:
            return value
        kept = dict(value)
        for theirs, ours in renamed:
            del kept[theirs]
            own = _get(value, ours)
            if own is _MISSING:
                self.original = True
                _set(kept, ours, value[theirs])
            else:
                self._compare(NamePair(event, theirs, value[theirs], ours, own))
        return kept

    def _renamed(self, event: str, value: Value) -> tuple[tuple[str, str], ...]:
        """Return FlagPerf's names in the record, each with our name."""
        pairs = ((name, self._names.our_name(event, name)) for name in value)
        return tuple((theirs, ours) for theirs, ours in pairs if ours is not None)

    def _compare(self, pair: NamePair) -> None:
        self.has_both = True
        if pair.theirs_value != pair.ours_value:
            self.differences += 1
            self.difference = self.difference or pair


_MISSING = object()
_MAX_LAYOUTS = 100
"""Bounds the memory that a broken log takes."""


def _get(value: Value, name: str) -> Any:
    """Return a value by our name; ``final_metrics.X`` is the key ``X`` of the object ``final_metrics``."""
    if not name.startswith(_FINAL):
        return value.get(name, _MISSING)
    metrics = value.get(_FINAL[:-1])
    return metrics.get(name[len(_FINAL) :], _MISSING) if isinstance(metrics, dict) else _MISSING


def _set(value: dict[str, Any], name: str, new: Any) -> None:
    if not name.startswith(_FINAL):
        value[name] = new
        return
    metrics = value.get(_FINAL[:-1])
    value[_FINAL[:-1]] = {**(metrics if isinstance(metrics, dict) else {}), name[len(_FINAL) :]: new}
