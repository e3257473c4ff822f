"""The first table of a comparison: a row for each case, with the metric that decides its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.comparison import Change, Compared, Matched
from pytest_flagperf.results.units import quantity, signed

HEAD = ("case", "metric", "old", "new", "change", "noise", "verdict")
UNCHANGED, FAILED, TARGET_MISSED = "unchanged", "failed", "target missed"
GONE, LEFT_OUT, ADDED = "missing", "left out", "new"
CHECK = f"{noise.IMPLAUSIBLE}: check the run"
BAD = (noise.WORSE, FAILED, TARGET_MISSED, GONE)
"""The verdicts of cases that regressed."""
_ORDER = (noise.WORSE, noise.MISSING, noise.IMPLAUSIBLE, noise.CHANGED, noise.BETTER, noise.WITHIN)
_UNKNOWN = "?"


@dataclass(frozen=True)
class CaseRow:
    """A row of the table; the values are formatted."""

    case: str
    verdict: str
    metric: str = ""
    old: str = ""
    new: str = ""
    change: str = ""
    noise: str = ""
    unit: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        return self.case, self.metric, self.old, self.new, self.change, self.noise, self.verdict


def case_rows(cases: Sequence[Compared], matched: Matched, threshold: float, *, common: bool = False) -> list[CaseRow]:
    """Return the compared cases, then those that only one run has; ``common``: cases may be missing."""
    rows = [_row(case, threshold) for case in cases]
    rows += [CaseRow(case, LEFT_OUT if common else GONE) for case in matched.lost]
    return rows + [CaseRow(case, ADDED) for case in matched.fresh]


def implausible(cases: Sequence[Compared]) -> list[str]:
    """Return a sentence for each case that improved so much that one of the two runs measured wrongly."""
    return [text for case in cases if (text := _implausible(case))]


def _implausible(case: Compared) -> str:
    found = [change for change in case.changes if change.judged and change.judgement.word == noise.IMPLAUSIBLE]
    if not found:
        return ""
    last = found[-1]
    others = f" (also {', '.join(change.name for change in found[:-1])})" if len(found) > 1 else ""
    return (
        f"{case.row.new.case}: {last.name} went from {last.texts[0]} to {last.texts[-1]}, "
        f"{signed(last.judgement.change or 0.0)}{others}, with the same config and machine; {CHECK}"
    )


def _row(case: Compared, threshold: float) -> CaseRow:
    change = _deciding(case)
    verdict = _verdict(case, change, threshold)
    if change is None:
        return CaseRow(case.row.name, verdict)
    share, error = change.judgement.change, change.judgement.error
    return CaseRow(
        case=case.row.name,
        verdict=verdict,
        metric=change.name,
        old=change.texts[0],
        new=change.texts[-1],
        change="" if share is None else signed(share),
        noise=_UNKNOWN if error is None else quantity(error.limit, "share"),
        unit=change.unit,
    )


def _deciding(case: Compared) -> Change | None:
    """Return the metric with the worst judgement, of several the metric that changed most; else the last metric."""
    judged = [change for change in case.changes if change.judged and change.judgement.word in _ORDER]
    if not judged:
        return None
    worst = min(_ORDER.index(change.judgement.word) for change in judged)
    same = [change for change in judged if change.judgement.word == _ORDER[worst]]
    if _ORDER[worst] == noise.WITHIN:
        return same[-1]
    return max(reversed(same), key=lambda change: round(abs(change.judgement.change or 0.0), 3))


def _verdict(case: Compared, change: Change | None, threshold: float) -> str:
    if not any(outcome.ok for outcome in case.row.new.outcomes):
        return FAILED
    word = change.word if change is not None else ""
    if any(case.row.regressions(case.changes, threshold)):
        # Of regressions without a worse metric, a figure is missing or the target was missed.
        missing = change is not None and change.judgement.word == noise.MISSING
        return noise.WORSE if word == noise.WORSE or missing else TARGET_MISSED
    return CHECK if word == noise.IMPLAUSIBLE else word or UNCHANGED
