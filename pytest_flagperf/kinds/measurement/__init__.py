"""A measurement: figures of the machine, such as the bandwidth of its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from flagperf_driver import options
from pytest_flagperf.kind import CaseWords, Criterion, DurationEstimate, Kind

from .suite import MeasurementTable

if TYPE_CHECKING:
    from flagperf_driver.node.logs.ranklog import RankLog
    from pytest_flagperf.catalog.suite import SuiteTable
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.report.charts import Chart
    from pytest_flagperf.results.comparing.stored_runs import StoredRuns
    from pytest_flagperf.results.measured.metrics import MetricValue
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.tables.store import StoredRun
    from pytest_flagperf.results.verdicts.case_result import CaseResult
    from pytest_flagperf.stored.plan import StoredPlan


class MeasurementKind(Kind):
    """``kind = "measurement"``."""

    name = "measurement"
    table: ClassVar[type[SuiteTable]] = MeasurementTable
    program = "run_measurement.py"
    driver = ("measuring", "training")
    criteria: ClassVar[tuple[Criterion, ...]] = (
        Criterion(
            "measured",
            "the figures of all rounds are complete, possible, repeatable, and as good as the accepted baseline",
            f"{__name__}.verdicts:measured",
            rounds="measurements",
            gate="figures",
            verdicts={
                "points": "the measurement has points, and their records are valid",
                "measured": "the figure of a measurement is a finite number above 0",
                "possible": (
                    "the figure is at most 105 % of the chip's declared peak, and at least the suite's own bound"
                ),
                "repeatable": ("the figure varies between valid rounds, or in one round, by at most the suite's bound"),
            },
            subject="repetition",
        ),
        Criterion(
            "reaches",
            "the figure is at least the share of the peak that the vendor promises",
            f"{__name__}.verdicts:reaches",
            rounds="promised",
        ),
        Criterion(
            "uniform",
            "no device and no host is slower than the others",
            f"{__name__}.verdicts:uniform",
            rounds="siblings",
            subject="rank comparison",
            advice="compare the clocks and temperatures of its devices, and run the case again",
        ),
    )
    markers: ClassVar[Mapping[str, str]] = {"measurement": "a suite that measures the machine itself"}
    guide = "docs/measurements.md"

    def defaults(self, framework: str, driver: Path) -> list[Path]:
        return options.files(framework, driver, measures=True)

    def describe(self, plan: Plan) -> CaseWords:
        first, *more = plan.figures
        return CaseWords(first.name + (f" and {len(more)} more" if more else ""), ["measures the machine"])

    def estimate(self, plan: Plan, stored_runs: StoredRuns) -> DurationEstimate | str:
        from pytest_flagperf.running.forecast import declared, is_same_case, measured

        alike = (
            [one for one in rounds if is_same_case(plan, one)]
            for _, rounds in stored_runs.of_case(plan.case.without_repeat)
        )
        return next(filter(None, map(measured, alike)), None) or declared(plan) or "no expected_time_s"

    def slow_devices(self, outcome: Outcome, accepted: Mapping[str, float]) -> list[tuple[str, str]]:
        from .uniform import slow_devices

        return slow_devices(outcome, accepted)

    def measure(self, plan: StoredPlan, logs: Sequence[RankLog], starts: int) -> Iterable[MetricValue]:  # noqa: ARG002
        from pytest_flagperf.results.measured.metrics import memory, times

        first = next((log for log in logs if log.finished is not None), logs[0])
        return *times(first.finished or {}, first.rank), *memory(plan, logs)

    def metric(self, outcomes: Sequence[Outcome], *, named: bool, with_target: bool) -> str:  # noqa: ARG002
        from .tables import metric

        return metric(outcomes, named=named)

    def lines(self, cases: Sequence[CaseResult], width: int) -> list[str]:
        from .tables import lines

        return lines(cases, width)

    def charts(self, outcomes: Sequence[Outcome], points: int) -> Iterator[Chart | None]:  # noqa: ARG002
        from .charts import charts

        return charts(outcomes)

    def markdown(self, entries: Sequence[tuple[StoredRun, CaseResult]]) -> tuple[list[list[str]], str]:
        from .tables import rows

        return list(rows(entries)), f"Each figure is of the slowest process, at the {entries[0][1].first.scale} scale."
