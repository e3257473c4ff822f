"""The table of serving cases at the end of a run: a line for each case."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flagperf.report.terminal.table import NOTHING, aligned, time_of
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.case_result import CaseResult

from .suite import FIGURES, RATE
from .verdicts import accurate, marked

_COLUMNS = {
    "device_rate": "per device", "user_rate": "per user", "ttft_p50": "TTFT", "ttft_p99": "p99", "tpot_p50": "TPOT",
    "tpot_p99": "p99", "highest_rate_server": "requests/s", "right_tokens": "right",
}  # fmt: skip
"""The figures of a line, each with its heading."""
_HEAD = ("case", "tokens/s", *_COLUMNS.values(), "rounds", "e2e")
_INVALID = "invalid: not accurate"
_CLIENT, _RANDOM = "the client may be the bottleneck", "random weights"


def mark(outcomes: Sequence[Outcome]) -> str:
    """Return what a reader of a case's figures must know, such as that its answers are wrong; empty without."""
    wrong = any(not verdict.ok for verdict in accurate([one for one in outcomes if one.ended_well]))
    random, close = any(one.synthetic for one in outcomes), any(map(marked, outcomes))
    remarks = [text for text, there in ((_INVALID, wrong), (_RANDOM, random), (_CLIENT, close)) if there]
    return f" ({', '.join(remarks)})" if remarks else ""


def lines(cases: Sequence[CaseResult], width: int) -> list[str]:
    """Return one line per case; the name of the case has its own line if they do not fit."""
    table = [_HEAD, *map(_row, cases)]
    marks = [mark(case.outcomes) for case in cases]
    wide = aligned(table)
    shown = [f"{line}{more}" for line, more in zip(wide, ["", *marks], strict=True)]
    if max(map(len, shown)) <= width:
        return shown
    head, *short = aligned([row[1:] for row in table], left=0)
    named = (
        line
        for case, figures, more in zip(cases, short, marks, strict=True)
        for line in (f"{case.case}{more}", f"  {figures}")
    )
    return [f"  {head}", *named]


def _row(case: CaseResult) -> tuple[str, ...]:
    def shown(name: str) -> str:
        value = case.median(name)
        if value is None and name == "right_tokens":  # published weights have a score instead
            value = case.median("score")
        if value is None:
            return NOTHING
        # The heading has the unit of rates.
        return quantity(value, FIGURES[name].unit).removesuffix(f" {RATE}").removesuffix(" requests/s")

    rounds = f"{sum(outcome.ok for outcome in case.outcomes)}/{len(case.outcomes)}"
    return (case.case, shown("output_rate"), *map(shown, _COLUMNS), rounds, time_of(case))
