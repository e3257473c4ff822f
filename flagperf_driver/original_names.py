"""The original's names of logged figures and ours: one table, by which ranks write both and readers take either.

In the table ``{metric}`` is the suite's metric, by the original's name on the left and by ours on the right; ``{unit}``
is what the suite counts, such as ``images``, and ``{rate}`` the original's name for a step's throughput in that unit.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, NamedTuple

from flagperf_driver import events

_SO_FAR = (("global_steps", "step"), ("num_trained_samples", "samples"))
_EVALUATION = (*_SO_FAR, ("eval_{metric}", "{metric}"))
TABLE: Mapping[str, tuple[tuple[str, str], ...]] = {
    events.STEP_END: (*_SO_FAR, ("{rate}", "throughput")),
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
"""By event: the original's name and ours for the same figure. A figure with the same name in both is not listed."""

_RATES = {"sequences": "seq/s", "images": "img/s"}
_FINAL = "final_metrics."
_ALSO_READ: tuple[tuple[str, str, str], ...] = (
    (events.STEP_END, r"\w+/s", "throughput"),
    (events.EVALUATE, r"eval_(\w+)", "{}"),
    (events.INIT_EVALUATION, r"eval_(\w+)", "{}"),
    (events.FINISHED, r"training_\w+_per_second", "p_whole"),
    # The original's programs write ips or sps, and some misspell the word.
    (events.FINISHED, r"throu(?:gh|hg)put\([is]ps\)_raw", "p_whole"),
    (events.FINISHED, r"throu(?:gh|hg)put\([is]ps\)_no_eval", "p_train"),
    (events.FINISHED, r"throu(?:gh|hg)put\([is]ps\)_pure_compute", "p_core"),
    (events.FINISHED, r"final_(?!loss$|metrics$)(\w+)", _FINAL + "{}"),
)
"""Event, pattern and our name: what logs of the original's other programs have in place of the table's names."""

Value = Mapping[str, Any]


class Names:
    """The table for one suite: its metric, what the original calls that metric, and the unit that the suite counts."""

    def __init__(self, metric: str = "", original_metric: str = "", unit: str = "") -> None:
        self._metrics = {original_metric: metric} if original_metric else {}
        words = {"unit": unit, "rate": _RATES.get(unit, unit + "/s")}
        theirs, ours = {**words, "metric": original_metric or metric}, {**words, "metric": metric}
        self._ours = {
            event: {left.format(**theirs): right.format(**ours) for left, right in rows}
            for event, rows in TABLE.items()
        }

    def written(self, event: str, value: Value) -> Value:
        """The value of a record, with the original's names too; a name that the program writes itself is kept."""
        known = self._ours.get(event)
        if known is None:
            return value
        both = dict(value)
        for theirs, ours in known.items():
            got = _get(value, ours)
            if got is not _MISSING:
                both.setdefault(theirs, got)
        return both

    def ours(self, event: str, name: str) -> str | None:
        """Our name of a figure by the original's; None if it is not one of the original's in this record."""
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


class TwoNames(NamedTuple):
    """A figure that a record has under the original's name and under ours."""

    event: str
    theirs: str
    theirs_value: Any
    ours: str
    ours_value: Any

    def __str__(self) -> str:
        return f"{self.theirs} = {self.theirs_value!r:.40} and {self.ours} = {self.ours_value!r:.40} in {self.event}"


class Translator:
    """Gives the records of one log in our names, and notes what the log's names say about it."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.original = False
        """Whether a figure has the original's name alone: the log is the original's."""
        self.has_both = False
        """Whether a figure has both names."""
        self.differences = 0
        """How many figures of all records have two values."""
        self.difference: TwoNames | None = None
        """The first of these."""
        self._layouts: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = {}

    def translated(self, event: str, value: Value) -> Value:
        """The value in our names alone."""
        if event not in TABLE:
            return value
        # The records of an event have the same fields nearly always.
        layout = (event, *value)
        renamed = self._layouts.get(layout)
        if renamed is None:
            renamed = self._renamed(event, value)
            if len(self._layouts) < _MOST_LAYOUTS:
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
                self._compare(TwoNames(event, theirs, value[theirs], ours, own))
        return kept

    def _renamed(self, event: str, value: Value) -> tuple[tuple[str, str], ...]:
        """The original's names in the record, each with ours."""
        pairs = ((name, self._names.ours(event, name)) for name in value)
        return tuple((theirs, ours) for theirs, ours in pairs if ours is not None)

    def _compare(self, one: TwoNames) -> None:
        self.has_both = True
        if one.theirs_value != one.ours_value:
            self.differences += 1
            self.difference = self.difference or one


_MISSING = object()
_MOST_LAYOUTS = 100
"""Of a broken log, no more are kept."""


def _get(value: Value, name: str) -> Any:
    """A figure by our name, of which the part after ``final_metrics.`` is a name in that table."""
    if not name.startswith(_FINAL):
        return value.get(name, _MISSING)
    metrics = value.get(_FINAL[:-1])
    return metrics.get(name[len(_FINAL) :], _MISSING) if isinstance(metrics, dict) else _MISSING


def _set(value: dict[str, Any], name: str, got: Any) -> None:
    if not name.startswith(_FINAL):
        value[name] = got
        return
    metrics = value.get(_FINAL[:-1])
    value[_FINAL[:-1]] = {**(metrics if isinstance(metrics, dict) else {}), name[len(_FINAL) :]: got}
