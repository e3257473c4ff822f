"""A training: a model is trained to a target, and its throughput is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from flagperf_driver import options
from pytest_flagperf.kind import CaseWords, Criterion, DurationEstimate, Kind
from pytest_flagperf.stored.plan import MAIN_THROUGHPUT, THROUGHPUTS

from .suite import TrainingTable

if TYPE_CHECKING:
    from flagperf_driver.node.logs.ranklog import RankLog
    from pytest_flagperf.case import Shape
    from pytest_flagperf.catalog import Suite
    from pytest_flagperf.config import Resolved
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.report.charts import Chart
    from pytest_flagperf.results.comparing.stored_runs import StoredRuns
    from pytest_flagperf.results.measured.metrics import MetricValue
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.tables.published import Published
    from pytest_flagperf.results.tables.store import StoredRun
    from pytest_flagperf.results.verdicts.case_result import CaseResult
    from pytest_flagperf.stored.plan import StoredPlan


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
    criteria: ClassVar[tuple[Criterion, ...]] = (
        Criterion(
            "converges",
            "each round reaches the suite's target",
            f"{__name__}.verdicts:rounds_converge",
            rounds="training",
            gate="valid",
            verdicts={
                "loss_finite": "every logged loss is a finite number",
                "real_data": "the round trained to the target on the suite's data",
                "learned": "the loss fell and the metric improved, by more than noise",
                "experts": "with a mixture of experts: no expert gets more than max_expert_load times the mean",
                "drill": "each fault of --drill struck and was noticed",
                "goodput": "with --min-goodput: this share of the time became progress of the training",
                "target": "an evaluation of the whole evaluation set reached the target",
                "agrees": "the log's last record and its evaluations agree on the convergence",
                "not_too_early": "the target was not reached earlier than the suite's reference curves allow",
                "parity": "with parity_samples: the loss follows the suite's reference curves",
            },
            kind="convergence",
            advice="compare its curves with those of a run that converged; run it again with other seeds",
        ),
        Criterion(
            "throughput",
            "the throughputs are complete and plausible",
            f"{__name__}.verdicts:throughput",
            gate="figures",
            verdicts={
                "p_whole": "the throughput of the whole training is a finite number above 0",
                "p_train": "the throughput without evaluations is a finite number above 0",
                "p_core": "the throughput of the measured steps is a finite number above 0",
                "mfu": "the chips computed no more than their peak",
                "vendor_factor": "a vendor's steps gain no more than can be explained",
                "repeated": "a clean process repeats a drawn segment with the same losses and weights",
                "repeatable": "without a vendor's code: the repeated segment is equal bit by bit; else a warning",
                "measured_steps": "enough steps were measured after the warm-up",
                "samples": "the counts of steps and samples are numbers above 0",
            },
        ),
        Criterion(
            "speedup",
            "many cards are faster than one card by at least the required efficiency",
            rounds="scaling",
            gate="speedup",
            verdicts={
                "speedup": "many cards are faster than one card",
                "efficiency": "the speed-up per card is at least the required efficiency",
            },
            subject="speed-up",
            advice="compare the step times of its ranks, and the device's idle time by --throughput-only",
        ),
    )
    guide = "docs/models.md"

    def defaults(self, framework: str, driver: Path) -> list[Path]:
        return options.files(framework, driver)

    def check(
        self, suite: Suite, scale: str, shape: Shape, resolved: Resolved, *_: object
    ) -> tuple[Resolved, list[str]]:
        from .plan import check

        return check(suite, scale, shape, resolved)

    def describe(self, plan: Plan) -> CaseWords:
        from .plan import describe

        return describe(plan)

    def estimate(self, plan: Plan, stored_runs: StoredRuns) -> DurationEstimate | str:
        from .forecast import estimate

        return estimate(plan, stored_runs)

    def outlook(self, plan: Plan, stored_runs: StoredRuns, results: Iterable[Published]) -> tuple[str, list[str]]:
        from .forecast import checkpoints, convergence, replay

        return convergence(plan, stored_runs, results), [*checkpoints(plan, stored_runs), *replay(plan)]

    def measure(self, plan: StoredPlan, logs: Sequence[RankLog], starts: int) -> Iterable[MetricValue]:
        from .metrics import of_round

        return of_round(plan, logs, starts)

    def metric(self, outcomes: Sequence[Outcome], *, named: bool, with_target: bool) -> str:
        from .tables import metric

        return metric(outcomes, named=named, with_target=with_target)

    def lines(self, cases: Sequence[CaseResult], width: int) -> list[str]:
        from .tables import lines

        return lines(cases, width)

    def charts(self, outcomes: Sequence[Outcome], points: int) -> Iterator[Chart | None]:
        from .charts import charts

        return charts(outcomes, points)

    def markdown(self, entries: Sequence[tuple[StoredRun, CaseResult]]) -> tuple[list[list[str]], str]:
        from .tables import rows

        unit = entries[0][1].first.rate_unit
        return list(rows(entries)), f"Throughputs in {unit} over all cards, e2e_time in s, mem in GiB."
