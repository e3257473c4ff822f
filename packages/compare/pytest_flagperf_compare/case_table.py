"""The first table of a comparison: a row for each case, with the metric that decides its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.units import count, quantity, signed

from .comparison import NOISY, Change, Compared, Matched

HEAD = ("case", "metric", "old", "new", "change", "limit", "verdict")
"""``limit``: the smallest change for the worse that counts."""
UNCHANGED, FAILED, TARGET_MISSED, NOT_JUDGED = "unchanged", "failed", "target missed", "not judged"
GONE, LEFT_OUT, ADDED = "missing", "left out", "new"
CHECK = f"{noise.IMPLAUSIBLE}: check the run"
BAD = (noise.WORSE, FAILED, TARGET_MISSED)
"""The verdicts of cases that regressed."""
UNDECIDED = (NOT_JUDGED, NOISY, CHECK)
"""The verdicts of cases that could not be judged."""
_ALONE = (GONE, LEFT_OUT, ADDED)
"""The verdicts of cases that only one run has."""
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
    limit: str = ""
    unit: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        return self.case, self.metric, self.old, self.new, self.change, self.limit, self.verdict


def case_rows(cases: Sequence[Compared], matched: Matched, *, common: bool = False) -> list[CaseRow]:
    """Return the compared cases, then those that only one run has; ``common``: cases may be missing."""
    rows = [_row(case) for case in cases]
    lost = LEFT_OUT if common else NOT_JUDGED if matched.is_interrupted else GONE
    rows += [CaseRow(case, lost) for case in matched.lost]
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
        f"{case.row.new.case}: {last.name} went from {' to '.join(last.texts)}, "
        f"{signed(last.judgement.change or 0.0)}{others}, with the same config and machine; {CHECK}"
    )


def headline(cases: Sequence[Compared], rows: Sequence[CaseRow]) -> str:
    """Return how many cases regressed, or that none did and the largest limit; then how many have another verdict."""
    verdicts = Counter(row.verdict for row in rows)
    if chips := {case.row.chips for case in cases} - {None}:
        return _between_chips(cases, [*filter(None, chips)])
    bad = sum(verdicts[word] for word in BAD)
    judged = len(rows) - sum(verdicts[word] for word in (*UNDECIDED, *_ALONE))
    others = (*UNDECIDED, GONE) if judged else (NOISY, CHECK, GONE)
    rest = "".join(f"; {count(verdicts[word], 'case')} {word}" for word in others if verdicts[word])
    if bad:
        return f"{bad} of {count(judged, 'case')} regressed{rest}"
    if not judged:
        return f"no case was judged{rest}"
    return f"no regression{_unseen(cases)}{rest}"


def _between_chips(cases: Sequence[Compared], chips: Sequence[tuple[str, str]]) -> str:
    """Return how the main figures of two chips compare, as the median over the cases; no regressions."""
    ratios = [ratio for case in cases if (ratio := case.row.ratio(case.changes)) is not None]
    names = ", ".join(f"{new} compared with {old}" for old, new in chips)
    if not ratios:
        return f"{names}: no figure of both"
    texts = [quantity(ratio, "x") for ratio in (median(ratios), min(ratios), max(ratios))]
    spread = f", the median of {len(ratios)} cases ({texts[1]} to {texts[2]})" if len(ratios) > 1 else ""
    return f"{names}: {texts[0]} the {cases[0].row.old.first.main}{spread}"


def _unseen(cases: Sequence[Compared]) -> str:
    """Return the largest limit of all judged metrics: a smaller change cannot be seen in each case."""
    changes = [
        (case.row.new.case, change)
        for case in cases
        for change in case.changes
        if change.judged and not change.is_noisy
    ]
    limits = [
        (change.judgement.needed, f"{change.name} of {name}")
        for name, change in changes
        if change.judgement.needed is not None
    ]
    if not limits:
        return ""
    largest, metric = max(limits)
    unknown = any(change.judgement.error is None for _, change in changes if change.judgement.needed is not None)
    unknown_noise = ", noise unknown" if unknown else ""
    return f"; a change below {quantity(largest, 'share')} cannot be seen ({metric}){unknown_noise}"


def not_judged(cases: Sequence[Compared]) -> list[str]:
    """Return a sentence for each case that was not judged, or of which a metric is too noisy."""
    without = [f"{case.row.new.case}: {NOT_JUDGED}: {text}" for case in cases if (text := case.row.undecided)]
    return without + [text for case in cases if (text := _too_noisy(case))]


def _too_noisy(case: Compared) -> str:
    change = _noisiest(case)
    if change is None or case.row.undecided:
        return ""
    return (
        f"{case.row.new.case}: {NOISY}: {change.name} went from {' to '.join(change.texts)} ({change.share}), and "
        f"chance alone reaches {limit(change)}; measure more rounds, on a machine without other work"
    )


def _noisiest(case: Compared) -> Change | None:
    """Return the metric that is too noisy to judge, of several the noisiest."""
    noisy = [change for change in case.changes if change.is_noisy]
    return max(noisy, key=lambda change: change.judgement.needed or 0.0, default=None)


def gone(matched: Matched, new: Path) -> str:
    """Return a sentence about the cases that the new run does not have; empty without any."""
    if not matched.lost:
        return ""
    cases = f"{count(len(matched.lost), 'case')} of the old run: {', '.join(matched.lost)}"
    return f"{new} does not have {cases}; --common compares without them"


def _row(case: Compared) -> CaseRow:
    change = case.change(case.row.old.first.main) if case.row.chips else _deciding(case)
    verdict = _verdict(case, change)
    if change is None:
        return CaseRow(case.row.name, verdict)
    old, new = change.texts
    return CaseRow(
        case=case.row.name,
        verdict=verdict,
        metric=change.name,
        old=old,
        new=new,
        change=change.share,
        limit=limit(change),
        unit=change.unit,
    )


def limit(change: Change) -> str:
    """Return the smallest change for the worse that counts; ``?`` if the noise is unknown."""
    judgement = change.judgement
    if judgement.error is None or judgement.needed is None:
        return _UNKNOWN
    return quantity(judgement.needed, "share")


def _deciding(case: Compared) -> Change | None:
    """Return the metric with the worst judgement, of several the metric that changed most; else the last metric."""
    judged = [change for change in case.changes if change.judged and change.judgement.word in _ORDER]
    if not judged:
        return None
    worst = min(_ORDER.index(change.judgement.word) for change in judged)
    same = [change for change in judged if change.judgement.word == _ORDER[worst]]
    if _ORDER[worst] == noise.WITHIN:
        return _noisiest(case) or same[-1]
    return max(reversed(same), key=lambda change: round(abs(change.judgement.change or 0.0), 3))


def _verdict(case: Compared, change: Change | None) -> str:
    if case.row.fails_more_often:
        return FAILED
    if case.row.undecided:
        return NOT_JUDGED
    if case.row.chips:
        ratio = case.row.ratio(case.changes)
        return NOT_JUDGED if ratio is None else quantity(ratio, "x")
    word = change.word if change is not None else ""
    if any(case.row.regressions(case.changes)):
        # Of regressions without a worse metric, a figure is missing or the target was missed.
        missing = change is not None and change.judgement.word == noise.MISSING
        return noise.WORSE if word == noise.WORSE or missing else TARGET_MISSED
    if word == noise.IMPLAUSIBLE:
        return CHECK
    return NOISY if _noisiest(case) else word or UNCHANGED
