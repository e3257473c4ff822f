"""The lab's kind of suites: a measurement whose figures may not fall where the transferred size grows."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pytest_flagperf.hooks import hookimpl
from pytest_flagperf.kinds import CaseWords, Criterion, MeasurementKind
from pytest_flagperf.plan import Plan
from pytest_flagperf.results import CaseResult, Outcome, Verdict

LEAST = 0.9


def grows(rounds: Sequence[Outcome]) -> Iterator[Verdict]:
    for outcome in rounds:
        for figure in outcome.figures if outcome.ok else ():
            points = [point for point in outcome.points if figure.name in point.figures]
            slower = [
                after.name
                for before, after in pairwise(points)
                if after.figures[figure.name] < LEAST * before.figures[figure.name]
            ]
            got, expected = ", ".join(slower) or "none", f"no size below {LEAST:.0%} of the one before"
            sentence = f"round {outcome.round}: {figure.name} falls at {got}; expected {expected}" if slower else ""
            yield Verdict(f"grows {figure.name}", not slower, got, expected, sentence)


class TransferKind(MeasurementKind):
    name = "transfer"
    criteria = (*MeasurementKind.criteria, Criterion("grows", "no size is slower than the one before", grows))

    def describe(self, plan: Plan) -> CaseWords:
        return CaseWords(plan.figures[0].name, ["measures transfers"])

    def lines(self, cases: Sequence[CaseResult], width: int) -> list[str]:
        return [f"{case.case}: {self.metric(case.outcomes, named=True, with_target=False)}" for case in cases]


@hookimpl
def flagperf_kinds() -> list[TransferKind]:
    return [TransferKind()]
