"""The lab's kind of suites: a measurement whose figures may not fall where the transferred size grows."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from pytest_flagperf.benchmark import MeasurementBenchmark
from pytest_flagperf.hooks import hookimpl
from pytest_flagperf.kinds import CaseWords, JudgeRounds, MeasurementKind
from pytest_flagperf.kinds.benchmark import Judge
from pytest_flagperf.plan import Plan
from pytest_flagperf.results import CaseResult, Outcome, Verdict

LEAST = 0.9


class TransferKind(MeasurementKind):
    name = "transfer"
    verdicts = ("grows",)

    def describe(self, plan: Plan) -> CaseWords:
        return CaseWords(plan.figures[0].name, ["measures transfers"])

    def judges(self) -> Mapping[str, JudgeRounds]:
        return {**super().judges(), "test_grows": grows}

    def lines(self, cases: Sequence[CaseResult], width: int) -> list[str]:
        return [f"{case.case}: {self.metric(case.outcomes, named=True, with_target=False)}" for case in cases]


class TransferBenchmark(MeasurementBenchmark):
    kind = "transfer"

    def test_grows(self, measurements: Sequence[Outcome], judge: Judge) -> None:
        judge(grows(measurements))


def grows(outcomes: Sequence[Outcome]) -> list[Verdict]:
    return [verdict for outcome in outcomes if outcome.ok for verdict in _of_round(outcome)]


def _of_round(outcome: Outcome) -> Iterator[Verdict]:
    for figure in outcome.figures:
        points = [point for point in outcome.points if figure.name in point.figures]
        slower = [
            after.name
            for before, after in pairwise(points)
            if after.figures[figure.name] < LEAST * before.figures[figure.name]
        ]
        got, expected = ", ".join(slower) or "none", f"no size below {LEAST:.0%} of the one before"
        sentence = f"round {outcome.round}: {figure.name} falls at {got}; expected {expected}" if slower else ""
        yield Verdict(f"grows {figure.name}", not slower, got, expected, sentence)


@hookimpl
def flagperf_kinds() -> list[TransferKind]:
    return [TransferKind()]
