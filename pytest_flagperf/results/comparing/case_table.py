"""The first table of a comparison: a row for each case, with the metric that decides its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.comparison import Change, Compared, Matched
from pytest_flagperf.results.units import quantity, signed

HEAD = ("case", "metric", "old", "new", "change", "noise", "verdict")
UNCHANGED, FAILED, TARGET_MISSED, GONE, ADDED = "unchanged", "failed", "target missed", "missing", "new"
BAD = (noise.WORSE, FAILED, TARGET_MISSED)
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


def case_rows(cases: Sequence[Compared], matched: Matched, threshold: float) -> list[CaseRow]:
    """Return the rows of the compared cases, then of the cases that only one run has."""
    rows = [_row(case, threshold) for case in cases]
    rows += [CaseRow(case, GONE) for case in matched.lost]
    return rows + [CaseRow(case, ADDED) for case in matched.fresh]


def implausible(cases: Sequence[Compared]) -> list[str]:
    """Return a sentence for each figure that improved so much that one of the two runs measured wrongly."""
    return [
        f"{case.row.new.case}: {change.name} went from {change.texts[0]} to {change.texts[-1]} "
        f"({signed(change.judgement.change or 0.0)}) with the same config and machine; {noise.IMPLAUSIBLE}"
        for case in cases
        for change in case.changes
        if change.judged and change.judgement.word == noise.IMPLAUSIBLE
    ]


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
    """Return the metric with the worst judgement, of several the one that changed most; else the last one."""
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
    return word or UNCHANGED
