"""A training: a model is trained to a target, and its throughput is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flagperf_driver import options
from pytest_flagperf.kind import CaseWords, JudgeRounds, Kind
from pytest_flagperf.stored.plan import MAIN_THROUGHPUT, THROUGHPUTS

from .suite import TrainingTable

if TYPE_CHECKING:
    from pytest_flagperf.case import Shape
    from pytest_flagperf.catalog import Suite
    from pytest_flagperf.config import Resolved
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.report.page.charts import Chart
    from pytest_flagperf.results.comparing.stored_runs import StoredRuns
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.tables.published import Published
    from pytest_flagperf.results.tables.store import StoredRun
    from pytest_flagperf.results.verdicts.case_result import CaseResult
    from pytest_flagperf.running.forecast import DurationEstimate


class TrainingKind(Kind):
    """``kind = "training"``."""

    name = "training"
    table = TrainingTable
    program = "run_pretraining.py"
    driver = ("training",)
    converges = True
    needs_config = True
    judged = THROUGHPUTS
    main = MAIN_THROUGHPUT
    guide = "docs/models.md"

    def defaults(self, framework: str, driver: Path) -> list[Path]:
        return options.files(framework, driver)

    def check(self, suite: Suite, scale: str, shape: Shape, resolved: Resolved) -> tuple[Resolved, list[str]]:
        from .plan import check

        return check(suite, scale, shape, resolved)

    def describe(self, plan: Plan) -> CaseWords:
        from .plan import describe

        return describe(plan)

    def estimate(self, plan: Plan, stored_runs: StoredRuns) -> DurationEstimate | str:
        from .forecast import estimate

        return estimate(plan, stored_runs)

    def outlook(self, plan: Plan, stored_runs: StoredRuns, results: Iterable[Published]) -> tuple[str, list[str]]:
        from .forecast import checkpoints, convergence

        return convergence(plan, stored_runs, results), list(checkpoints(plan, stored_runs))

    def judges(self) -> Mapping[str, JudgeRounds]:
        from . import verdicts

        return {
            "test_throughput": verdicts.throughput,
            "test_converges": lambda outcomes: [one for outcome in outcomes for one in verdicts.converges(outcome)],
        }

    def metric(self, outcomes: Sequence[Outcome], *, named: bool, with_target: bool) -> str:
        from .terminal import metric

        return metric(outcomes, named=named, with_target=with_target)

    def lines(self, cases: Sequence[CaseResult], width: int) -> list[str]:
        from .terminal import lines

        return lines(cases, width)

    def charts(self, outcomes: Sequence[Outcome], points: int) -> Iterator[Chart | None]:
        from .charts import charts

        return charts(outcomes, points)

    def markdown(self, entries: Sequence[tuple[StoredRun, CaseResult]]) -> tuple[list[list[str]], str]:
        from .markdown import rows

        unit = entries[0][1].first.rate_unit
        return list(rows(entries)), f"Throughputs in {unit} over all cards, e2e_time in s, mem in GiB."
