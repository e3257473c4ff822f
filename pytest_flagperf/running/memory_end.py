"""Where memory ends in a sweep of sizes: a size that does not fit is left out, and larger ones are not started."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_flagperf.config import is_size
from pytest_flagperf.results.logs.failures import ran_out_of_memory
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.selection import Selected

from .run import Run


def not_started(run: Run, selected: Selected) -> str | None:
    """Return why a variant does not start: a smaller size did not fit; None if it starts."""
    for key, value, other in _smaller(run, selected):
        if _did_not_fit(run.rounds.ended(other)):
            return f"not started: memory ended at {key}={value}"
    return None


def left_out(run: Run, selected: Selected) -> str | None:
    """Return why a variant that did not fit is left out: a smaller size ran; None if it counts as a failure."""
    if not selected.case.variant or not _did_not_fit(run.rounds.ended(selected)):
        return None
    ran = [pair for *pair, other in _smaller(run, selected) if any(one.ok for one in run.rounds.ended(other))]
    if not ran:
        return None
    key, value = max(ran, key=lambda pair: int(pair[1]))
    return f"left out: memory ended at {key}={dict(selected.case.variant)[key]}; {value} ran"


def _smaller(run: Run, selected: Selected) -> Iterator[tuple[str, str, Selected]]:
    """Yield the variants that differ from one in a smaller size alone, with the key and its value."""
    own = dict(selected.case.variant)
    for other in run.selection.cases if own else ():
        values = dict(other.case.variant)
        if other.case.without_variant != selected.case.without_variant or values.keys() != own.keys():
            continue
        key, *more = [key for key in own if values[key] != own[key]] or [""]
        sizes = not more and is_size(key, own.get(key, "")) and is_size(key, values.get(key, ""))
        if sizes and int(values[key]) < int(own[key]):
            yield key, values[key], other


def _did_not_fit(rounds: list[Outcome]) -> bool:
    """Return True if memory ran out in every round: a size that fits at times is not too large."""
    return bool(rounds) and all(ran_out_of_memory(outcome.failures) for outcome in rounds)
