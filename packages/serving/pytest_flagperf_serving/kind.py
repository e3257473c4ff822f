"""The kind of serving suites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pytest_flagperf.kinds import CaseWords, Criterion, MeasurementKind

from .suite import FIGURES, OF_CLIENT, ServingTable

if TYPE_CHECKING:
    from flagperf_driver.node.logs.points import MeasuredPoint
    from flagperf_driver.node.logs.samples import Samples
    from pytest_flagperf.case import Shape
    from pytest_flagperf.catalog import Chip
    from pytest_flagperf.catalog.suite import Suite
    from pytest_flagperf.config import Resolved
    from pytest_flagperf.kind import DurationEstimate
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.report.charts import Chart
    from pytest_flagperf.results.comparing.stored_runs import StoredRuns
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.tables.store import StoredRun
    from pytest_flagperf.results.verdicts.case_result import CaseResult
    from pytest_flagperf.selection import Selected
    from pytest_flagperf.stored.plan import StoredPlan

_VERDICTS = f"{__package__}.verdicts"


class ServingKind(MeasurementKind):
    """``kind = "serving"``: a measurement whose points are numbers of requests that a server has at once."""

    name = "serving"
    table = ServingTable
    program = "run_serving.py"
    framework = "pytorch"
    judged = tuple(name for name in FIGURES if name not in OF_CLIENT)
    judged_at_points = ("device_rate", "ttft_p50")
    generates = True
    needs_config = True
    criteria: ClassVar[tuple[Criterion, ...]] = (
        Criterion(
            "accurate",
            "the served model answers as the model itself does, also under load",
            f"{_VERDICTS}:accurate",
            rounds="measurements",
            verdicts={
                "accurate": "the engine's tokens are those of the model without the engine, or its answers to a set"
                " score as the stored reference",
                "length": "answers to a set are as long as those of the stored reference",
                "as_trained": "served as trained: the engine's log perplexity is that of the training's evaluation",
                "under_load": "answers among the timed ones are as right as those without load",
            },
            advice="compare the engine's precision and its version with those of a run that was accurate",
        ),
        Criterion(
            "served",
            "the server answers every request, computes each answer, and keeps its speed with more requests at once",
            f"{_VERDICTS}:served",
            rounds="measurements",
            verdicts={
                "answered": "every request got an answer of the requested length",
                "computed": "prompts that the server has seen before are answered no faster than others",
                "scales": "no concurrency is much slower than a smaller one",
                "client": "the client measures known delays correctly, and is not the bottleneck",
                "rates": "the highest rate of requests within the limits is known",
            },
            advice="read the server's log in the round's folder",
        ),
        *(one for one in MeasurementKind.criteria if one.name == "measured"),
    )
    markers: ClassVar[dict[str, str]] = {"serving": "a suite that serves a model"}
    guide = "packages/serving/README.md"

    def defaults(self, framework: str, driver: Path) -> list[Path]:
        return [*super().defaults(framework, driver), Path(__file__).with_name("defaults.py")]

    def check(
        self,
        suite: Suite,
        scale: str,
        shape: Shape,
        resolved: Resolved,
        chip: Chip,
        training: Suite | None = None,
    ) -> tuple[Resolved, list[str]]:
        from .memory import with_memory
        from .plan import missing_data, problems

        config = resolved.config
        found = [*problems(scale, shape, config), *missing_data(suite, scale, config)]
        return (resolved, found) if found or training is None else with_memory(resolved, shape, chip, training)

    def source(self, plan: Plan, chosen: Sequence[Selected]) -> Selected | None:
        from .plan import training

        return training(plan, chosen)

    def describe(self, plan: Plan) -> CaseWords:
        from .memory import sentence
        from .plan import measures

        published = bool(plan.config["accuracy_set"])
        weights = "random weights" if plan.synthetic else "published weights" if published else "trained weights"
        memory = sentence(plan.config, plan.shape, plan.case.hardware, plan.memory_gib)
        more = {"memory": memory} if memory else {}
        return CaseWords(measures(plan.config), [f"serves {weights}"], "none" if published else "included", more)

    def estimate(self, plan: Plan, stored_runs: StoredRuns) -> DurationEstimate | str:
        from .plan import longest

        known = super().estimate(plan, stored_runs)
        return longest(plan.config) if isinstance(known, str) else known

    def derived(
        self, points: tuple[MeasuredPoint, ...], plan: StoredPlan, folder: Path, samples: Mapping[str, Samples]
    ) -> tuple[MeasuredPoint, ...]:
        from .derived import derived

        return derived(points, plan, folder, samples)

    def metric(self, outcomes: Sequence[Outcome], *, named: bool, with_target: bool) -> str:
        from .tables import mark

        text = super().metric(outcomes, named=named, with_target=with_target)
        return f"{text}{mark(outcomes)}" if text else ""

    def remarks(self, old: Sequence[Outcome], new: Sequence[Outcome]) -> list[str]:
        from .curve import ratio

        return ratio(old, new)

    def lines(self, cases: Sequence[CaseResult], width: int) -> list[str]:
        from .tables import lines

        return lines(cases, width)

    def charts(self, outcomes: Sequence[Outcome], points: int) -> Iterator[Chart | None]:  # noqa: ARG002
        from .charts import charts

        return charts(outcomes)

    def markdown(self, entries: Sequence[tuple[StoredRun, CaseResult]]) -> tuple[list[list[str]], str]:
        rows, _ = super().markdown(entries)
        scale = entries[0][1].first.scale
        return rows, f"Times are by the client's clock, at the {scale} scale; rates are those of the best concurrency."
