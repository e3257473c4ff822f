"""A short measurement of all hosts at once before the first case: ``--preflight=measure``.

The suites that declare ``preflight`` for a scale take part. A device is slow if it is slower than the devices measured
beside it, or than the accepted baseline of a host with as many cards.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import framework_of
from pytest_flagperf.engines import Engine
from pytest_flagperf.kind import kind_of
from pytest_flagperf.plan import Plan, PlanRequest, make_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.progress import note
from pytest_flagperf.results.comparing.comparable import is_code
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.selection import Selected
from pytest_flagperf.stored import layout

from .judging import stored_baseline

if TYPE_CHECKING:
    from .run import Run

LEAVE_OUT = "leave-out"
FOLDER = "preflight"
"""The folder of the rounds in the run's directory."""


def check_machine(run: Run, chosen: Sequence[Selected]) -> list[str]:
    """Measure the usable hosts and return a line for each measurement and each excluded host.

    Problems if a device is slow and the option does not leave its host out, or if too few hosts are left.
    """
    option, begin = run.settings.as_written("preflight"), time.monotonic()
    if run.engine.host_count is None:
        raise Problems([f"{option}: the hosts of a case are unknown before it starts; pass --cluster with hosts"])
    lines: list[str] = []
    slow: list[tuple[str, str]] = []
    for plan in _plans(run, chosen, option):
        outcome = _measure(run, plan)
        accepted, differences = _accepted(run, plan, outcome)
        slow += kind_of(plan).slow_devices(outcome, accepted)
        lines.append(_line(outcome, accepted, differences))
    lines.append(f"preflight: measured in {quantity(time.monotonic() - begin, 's')}")
    if slow and run.settings.preflight != LEAVE_OUT:
        advice = "--preflight=leave-out runs without the host"
        raise Problems(f"{host}: {sentence}; {advice}" for host, sentence in slow)
    return [*lines, *_exclude(run.engine, slow, max(selected.case.nnodes for selected in chosen))]


def _usable(engine: Engine) -> list[str]:
    excluded = engine.leave_out().get("hosts", {})
    return [host.name for host in engine.hosts if host.name not in excluded]


def _plans(run: Run, chosen: Sequence[Selected], option: str) -> Iterator[Plan]:
    """Yield the plan of each measurement."""
    alike: dict[tuple[str, str, str, str], list[Selected]] = {}
    for selected in chosen:
        framework = framework_of(selected.suite, selected.case.framework)
        key = (selected.vendor.name, selected.case.hardware, framework, selected.scale)
        alike.setdefault(key, []).append(selected)
    nnodes = len(_usable(run.engine))
    for (_, hardware, framework, scale), cases in alike.items():
        nproc = max(selected.case.nproc for selected in cases)
        suites = [
            suite
            for suite in run.catalog.suites.values()
            if suite.framework == framework and scale in suite.scales and suite.scales[scale].preflight
            if nnodes * nproc >= suite.ranks.least
        ]
        if not suites:
            where = f"preflight in [scales.{scale}] of its suite.toml"
            raise Problems([f"{option}: no suite of {framework} declares {where}"])
        for suite in suites:
            case = Case(suite.model, framework, hardware, nnodes, nproc)
            measured = Selected(case, suite, cases[0].vendor, scale)
            yield run.plan(measured, preflight=True)


def _measure(run: Run, plan: Plan) -> Outcome:
    """Run the round of a plan; return its outcome."""
    of_case = run.directory.path / FOLDER / plan.case.folder
    number = 1 + len(list(of_case.glob("round*")))  # a resumed run has earlier ones
    folder = of_case / layout.round_folder(number)
    note("phase", text=f"preflight: {plan.case.model} on {count(plan.case.nnodes, 'host')}")
    try:
        give_back = run.engine.run(plan, number, folder, None)
    finally:
        note("phase_end")
    if give_back:
        give_back()
    outcome = store.measure_round(folder)
    if not outcome.ended_well:
        raise Problems([f"case {plan.case}: the measurement before the run failed; its logs are in {folder}"])
    return outcome


def _accepted(run: Run, plan: Plan, outcome: Outcome) -> tuple[Mapping[str, float], list[str]]:
    """Return the accepted figures of a host with as many cards, or what differs from their run.

    The settings that make the measurement short do not count, so its config is that of a whole measurement.
    """
    case = replace(plan.case, nnodes=1)
    baseline = stored_baseline(Path(run.settings.baselines), str(case))
    if baseline is None:
        return {}, []
    whole = make_plan(
        run.catalog, PlanRequest(case, plan.vendor, plan.scale, runtime=plan.runtime, check_data=False)
    ).fingerprint
    settings, reported = (one.get("deviations", {}) for one in (plan.fingerprint, outcome.fingerprint))
    deviations = {name: value for name, value in reported.items() if name not in settings}
    as_whole = replace(outcome, fingerprint={**whole, "deviations": {**whole["deviations"], **deviations}})
    differences = [text for text in baseline.differences(as_whole) if not is_code(text)]
    return ({} if differences else {name: figure.value for name, figure in baseline.metrics.items()}), differences


def _line(outcome: Outcome, accepted: Mapping[str, float], differences: Sequence[str]) -> str:
    figures = [
        f"{figure.name} {quantity(value, figure.unit)}"
        for figure in outcome.figures
        if (value := outcome.value(figure.name)) is not None
    ]
    compared_with = [] if outcome.nnodes * outcome.nproc > 1 else ["no other device"]
    compared_with += [] if accepted or differences else ["no accepted baseline (flagperf accept)"]
    missing = f"; compared with nothing: {' and '.join(compared_with)}" if len(compared_with) == 2 else ""
    other = f"; not compared with the accepted baseline: {', '.join(differences)}" if differences else ""
    return f"preflight: {outcome.model} on {', '.join(outcome.hosts)}: {', '.join(figures)}{missing}{other}"


def _exclude(engine: Engine, slow: Iterable[tuple[str, str]], nnodes: int) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for host, sentence in slow:
        reasons.setdefault(host, []).append(sentence)
    excluded = {host: "; ".join(sentences) for host, sentences in reasons.items()}
    lines = [f"left out: {host}: {why}" for host, why in excluded.items()]
    if excluded:
        left_out = engine.leave_out()
        engine.leave_out({**left_out, "hosts": {**left_out.get("hosts", {}), **excluded}})
        if len(_usable(engine)) < nnodes:
            raise Problems([*lines, f"{count(nnodes, 'host')} needed, {len(_usable(engine))} left"])
    return lines
