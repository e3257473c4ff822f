"""Rounds whose curves are equal although their seeds differ: one of them was not trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_flagperf.results.logs.log_ownership import LOG
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored import FormatError, files
from pytest_flagperf.stored.layout import OUTCOME
from pytest_flagperf.stored.round_dir import RoundFault, rounds_of

_FEWEST = 5
"""The fewest different values whose equality is no coincidence: a metric of a small evaluation set has few values."""
_Curve = Mapping[tuple[Any, str], Any]


def find(round_dir: Path, outcome: Outcome) -> Iterator[RoundFault]:
    """Yield a failure if the losses, or the evaluations, equal those of an earlier round with another seed.

    Synthetic data is not judged: no result depends on its curves.
    """
    if outcome.synthetic or outcome.started_ms is None:
        return
    own = {"losses": _losses(outcome.to_json()), "evaluations": _evaluations(outcome.to_json())}
    for other in rounds_of(round_dir.parent):
        body = _earlier(other.path / OUTCOME, outcome) if other.path != round_dir else {}
        theirs = {"losses": _losses(body), "evaluations": _evaluations(body)}
        equal = [name for name, curve in own.items() if _are_equal(curve, theirs[name])]
        if equal:
            first = f"round {outcome.round}: its {' and '.join(equal)} equal those of round {body['round']}"
            seeds = f"the seeds are {outcome.seed} and {body['seed']}"
            yield RoundFault(LOG, None, None, f"{first} to the last bit, expected others: {seeds}")
            return


def _earlier(path: Path, outcome: Outcome) -> Mapping[str, Any]:
    """Return the stored outcome of a round that began earlier and had another seed; empty for any other."""
    try:
        body = files.read(path)
    except FormatError:
        return {}
    started = body.get("started_ms")
    is_earlier = isinstance(started, int) and outcome.started_ms is not None and started < outcome.started_ms
    return body if is_earlier and body.get("seed") != outcome.seed else {}


def _losses(body: Mapping[str, Any]) -> _Curve:
    return {(step.get("step"), "loss"): step.get("loss") for step in _items(body.get("steps"))}


def _evaluations(body: Mapping[str, Any]) -> _Curve:
    return {
        (item.get("step"), str(name)): value
        for item in _items(body.get("evaluations"))
        for name, value in (item.get("metrics") or {}).items()
    }


def _items(value: Any) -> Iterable[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _are_equal(own: _Curve, others: _Curve) -> bool:
    """Compare the points of both curves; enough of them must differ from each other."""
    common = own.keys() & others.keys()
    return len({own[key] for key in common}) >= _FEWEST and all(own[key] == others[key] for key in common)
