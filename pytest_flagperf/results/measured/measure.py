"""Measure a round from its files: the plan, round.json, the samples and the ranks' logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flagperf_driver.perflog import number
from pytest_flagperf.printable import printable_in
from pytest_flagperf.results.logs import failures as failures_of
from pytest_flagperf.results.logs import log_ownership, milestone_times, monitors
from pytest_flagperf.results.logs.failures import Exit, Failure, RankLocation
from pytest_flagperf.results.logs.milestone_times import MilestoneTimes
from pytest_flagperf.results.logs.ranklog import RankLog, Target, read_rank, whole
from pytest_flagperf.results.logs.samples import Samples
from pytest_flagperf.results.measured import (
    busy,
    consistency,
    equal_rounds,
    machine,
    metrics,
    sampled,
    stragglers,
    validity,
    vendor_code,
)
from pytest_flagperf.results.measured import phases as phases_of
from pytest_flagperf.results.measured.consistency_pairs import RankFigures
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import Losses, MetricQuality, Outcome, Quality, TrainingWork, unreadable
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import rank_log
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import RankEnd, RoundDir, RoundRecord


def measure(round_dir: Path) -> Outcome:
    """Return the outcome of a round; raise FormatError only for an unreadable plan.json, all else is a failure."""
    directory = RoundDir(round_dir)
    plan = directory.read_plan()
    end, unreadable_end = _end(directory)
    target = Target(plan.metric.name, plan.metric.direction, plan.metric.unit, plan.metric.target, plan.metric.also)
    places = _places(plan)
    warmup = whole(plan.config.get("timing_warmup_steps"))
    logs = {
        place.rank: read_rank(
            round_dir / place.folder / rank_log(place.rank), place.rank, target, warmup, plan.metric, plan.sample_unit
        )
        for place in places
    }
    exits = {place.rank: _exit(directory, end, place) for place in places}
    milestones = _milestone_times(round_dir, places)
    failures = failures_of.find(plan.round, end, places, exits, logs, unreadable_end)
    phases = phases_of.of_round(logs.values(), plan.host(0).clock_offset_s)
    of_ranks = metrics.of_round(plan, logs.values(), target)
    samples, training = monitors.read(round_dir), phases_of.training(phases)
    clocks = {place.rank: _clock_set(samples, milestones, place) for place in places}
    failures += tuple(log_ownership.find(plan, end, places, logs, milestones, clocks))
    compared = 0
    if not failures:
        ranks = _compared_ranks(plan, end, places, logs, milestones, clocks, sampled.counted(samples, training))
        compared, failures = consistency.check(ranks, plan.round)
    p_whole = next((metric.value for metric in of_ranks if metric.name == "p_whole"), None)
    reports = monitors.reports(round_dir)
    load = busy.figures(samples, reports, training)
    values = (*of_ranks, *stragglers.spread(logs), *sampled.figures(samples, training, p_whole), *load)
    reasons = {place.folder: milestone_times.not_confined(round_dir / place.folder) for place in places}
    not_confined, remarks = vendor_code.confinement(plan, reasons)
    warnings = (
        *_warnings(plan, end),
        *remarks,
        *stragglers.find(places, logs),
        *monitors.warnings(round_dir),
        *monitors.dropped(samples),
        *sampled.energy_warnings(samples, training),
        *busy.own_load_warnings(samples, reports, training),
    )
    validity_warnings = (
        *validity.validity_warnings(round_dir, plan, samples, training),
        *vendor_code.validity_warnings(plan, logs.values()),
        *not_confined,
    )
    ran_on = machine.facts(round_dir, plan, logs[places[0].rank].init_end)
    outcome = _outcome(round_dir, plan, end, target, failures, warnings, list(logs.values()), values, phases)
    if plan.token is not None:
        outcome = replace(outcome, failures=(*failures, *equal_rounds.find(round_dir, outcome)))
    chip = machine.unverified_chip(round_dir, plan, logs[places[0].rank].init_end) if outcome.ok else ""
    return _printable(
        replace(
            outcome,
            validity_warnings=validity_warnings,
            machine=ran_on,
            compared=compared,
            unverified_chip=chip,
        )
    )


def measured(round_dir: Path) -> Outcome:
    """Measure a round from its files; unreadable files give a failed outcome with the reason."""
    return or_unreadable(measure, round_dir)


def or_unreadable(read: Callable[[Path], Outcome], round_dir: Path) -> Outcome:
    """Return what ``read`` returns; unreadable files give a failed outcome with the reason."""
    try:
        return read(round_dir)
    except FormatError as error:
        reason = str(error)
    except Exception as error:  # an unforeseen error fails only this round
        reason = f"{round_dir}: {type(error).__name__}: {error}"
    return unreadable(round_dir, reason)


def _printable(outcome: Outcome) -> Outcome:
    """Escape unprintable characters in the outcome's texts, which come from ranks and hosts."""
    body = outcome.to_json()
    escaped = printable_in(body)
    return outcome if escaped == body else Outcome.from_json(escaped)


def _milestone_times(round_dir: Path, places: Iterable[RankLocation]) -> dict[int, MilestoneTimes]:
    folders = dict.fromkeys(place.folder for place in places)
    by_folder = [milestone_times.read(round_dir / folder) for folder in folders]
    return {rank: times for ranks in by_folder for rank, times in ranks.items()}


def _clock_set(samples: Mapping[str, Samples], milestones: Mapping[int, MilestoneTimes], place: RankLocation) -> float:
    """The most seconds by which the clock of a rank's host was set, by its agent and by the sampler."""
    on_host = samples.get(place.folder)
    sampled_s = sum(abs(event.seconds) for event in on_host.events) if on_host else 0.0
    return sampled_s + (milestones[place.rank].clock_set_s if place.rank in milestones else 0.0)


def _compared_ranks(
    plan: StoredPlan,
    end: RoundRecord | None,
    places: Iterable[RankLocation],
    logs: Mapping[int, RankLog],
    milestones: Mapping[int, MilestoneTimes],
    clocks: Mapping[int, float],
    counted: tuple[sampled.Counted, ...],
) -> list[tuple[RankLocation, RankFigures]]:
    places = list(places)
    first = logs[places[0].rank]
    started_ms = math.nan if first.train_start_ms is None else first.train_start_ms
    offsets = {place.rank: plan.host(place.noderank).clock_offset_s for place in places}
    return [
        (
            place,
            RankFigures(
                plan.config,
                plan.cards,
                logs[place.rank],
                milestones.get(place.rank),
                first={} if place is places[0] else first.finished or {},
                first_start_ms=started_ms + 1000 * (offsets[place.rank] - offsets[places[0].rank]),
                round_s=end.seconds if end else None,
                clock_set_s=clocks[place.rank],
                left_out=plan.left_out,
                counted=counted if place is places[0] else (),
            ),
        )
        for place in places
    ]


def _outcome(
    round_dir: Path,
    plan: StoredPlan,
    end: RoundRecord | None,
    target: Target,
    failures: tuple[Failure, ...],
    warnings: tuple[str, ...],
    logs: list[RankLog],
    values: tuple[MetricValue, ...],
    phases: tuple[Phase, ...],
) -> Outcome:
    first = logs[0]
    finished = first.finished or {}
    facts = plan.facts()
    return Outcome(
        **{
            **facts,
            "sample_unit": plan.sample_unit or "samples",
            "fingerprint": _fingerprint(plan, first.init_end),
            "reference": plan.reference or None,
        },
        case=str(plan.case),
        model=plan.case.model,
        framework=plan.case.framework_name,
        hardware=plan.case.hardware,
        nnodes=plan.case.nnodes,
        nproc=plan.case.nproc,
        round=plan.round,
        seed=plan.seed,
        state=end.state if end else "unknown",
        target=target,
        failures=failures,
        stop_reason=_text(finished.get("stop_reason")),
        metrics=values,
        steps=first.steps,
        evaluations=first.evaluations,
        untrained=first.untrained,
        work=_work(plan, finished),
        losses=_losses(logs, finished),
        quality=_quality(first, finished, target),
        environment=_environment(plan, first, finished),
        started_ms=end.started_ms if end else None,
        ended_ms=end.ended_ms if end else None,
        impossible=tuple(figure for log in logs for figure in log.impossible),
        broken_lines=sum(log.broken_lines for log in logs),
        other_lines=sum(log.other_lines for log in logs),
        logs=tuple(log.path.relative_to(round_dir).as_posix() for log in logs if log.present),
        warnings=warnings,
        limits=_limits(plan),
        parity_samples=_count(plan.config.get("parity_samples")),
        phases=phases,
    )


def _fingerprint(plan: StoredPlan, init_end: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plan's fingerprint with the deviations that the rank reported."""
    fingerprint, reported = plan.fingerprint, _mapping(init_end.get("deviations"))
    if not reported:
        return fingerprint
    return {**fingerprint, "deviations": {**_mapping(fingerprint.get("deviations")), **reported}}


def _end(directory: RoundDir) -> tuple[RoundRecord | None, str | None]:
    """Read round.json: the record, or the reason why it cannot be read; both are None without a file."""
    if not directory.has_record:
        return None, None
    try:
        return directory.read_record(), None
    except FormatError as error:
        return None, str(error)


def _places(plan: StoredPlan) -> list[RankLocation]:
    """The planned ranks in order."""
    nproc = plan.case.nproc
    return [
        RankLocation(noderank * nproc + local, plan.host(noderank).name, noderank)
        for noderank in range(plan.case.nnodes)
        for local in range(nproc)
    ]


def _exit(directory: RoundDir, end: RoundRecord | None, place: RankLocation) -> Exit:
    """The exit of a rank from round.json; without an entry there from the agent's file."""
    hosts = [host for host in (end.hosts if end else ()) if host.noderank == place.noderank]
    ends = {rank.rank: rank for host in hosts for rank in host.ranks}
    if place.rank in ends:
        return _exit_of(ends[place.rank])
    try:
        return _exit_of(directory.read_rank_end(place.folder, place.rank))
    except FormatError:
        return Exit()


def _exit_of(end: RankEnd) -> Exit:
    return Exit(end.code, end.signal, end.cause)


def _warnings(plan: StoredPlan, end: RoundRecord | None) -> tuple[str, ...]:
    privileged = plan.interpreter.get("privileged")
    lines = [f"the ranks' container was privileged, as {privileged} requests"] if privileged else []
    if end is None:
        return tuple(lines)
    lines += end.warnings
    lines += [f"removed after the end of the round: {line}" for line in end.swept]
    for item in end.missing:
        how = "gone" if item.gone else f"missing here; they are on the host in {item.log_dir}"
        lines.append(f"the logs of {item.host} are {how}: {item.why}")
    return tuple(lines)


def _work(plan: StoredPlan, finished: Mapping[str, Any]) -> TrainingWork:
    config = plan.config
    epochs = number(finished.get("epochs"))
    return TrainingWork(
        samples=_count(finished.get("samples")),
        steps=_count(finished.get("steps")),
        epochs=epochs if math.isfinite(epochs) else None,
        measured_steps=_count(finished.get("measured_steps")),
        measured_samples=_count(finished.get("measured_samples")),
        warmup_steps=_count(finished.get("warmup_steps")),
        batch_per_card=_count(config.get("train_batch_size")),
        accumulation=whole(config.get("gradient_accumulation_steps")) or 1,
        samples_per_item=whole(config.get("samples_per_item")) or 1,
    )


def _limits(plan: StoredPlan) -> dict[str, float]:
    limits = {name: number(plan.config.get(name)) for name in ("max_steps", "max_epochs", "max_samples")}
    return {name: limit for name, limit in limits.items() if 0 < limit < math.inf}


def _losses(logs: Iterable[RankLog], finished: Mapping[str, Any]) -> Losses:
    logs = list(logs)
    bad = next((log for log in logs if log.bad_losses), None)
    final = finished.get("final_loss")
    return Losses(
        logged=logs[0].logged_steps,
        bad=sum(log.bad_losses for log in logs),
        first_bad_step=bad.first_bad_step if bad else None,
        first_bad=bad.first_bad_loss if bad else None,
        final=None if final is None else number(final),
    )


def _quality(log: RankLog, finished: Mapping[str, Any], target: Target) -> Quality:
    converged = finished.get("converged")
    final = _mapping(finished.get("final_metrics"))
    last = log.last_evaluation.metrics if log.last_evaluation else {}
    program_final = {name: number(value) for name in target.values if (value := final.get(name)) is not None}
    also = {name: MetricQuality(log.best.get(name), last.get(name), program_final.get(name)) for name in target.also}
    return Quality(
        evaluations=log.num_evaluations,
        bad=log.bad_metrics,
        best=log.best.get(target.name),
        last=last.get(target.name),
        also=also,
        reached=log.reached,
        program_converged=converged if isinstance(converged, bool) else None,
        program_final=program_final.get(target.name),
    )


def _environment(plan: StoredPlan, log: RankLog, finished: Mapping[str, Any]) -> dict[str, str]:
    """The environment of the round as texts for people."""
    init = log.init_end
    entries: dict[str, object] = {
        "device": init.get("device"),
        "log": "of FlagPerf, with its names" if log.names.original else None,
        "framework": " ".join(filter(None, [plan.case.framework_name, _text(init.get("framework_version"))])),
        "precision": init.get("precision"),
        "compile": init.get("compile"),
        "world size": init.get("world_size"),
        "parameters": init.get("parameters"),
        "threads per rank": finished.get("threads"),
        "cores of each rank": machine.cores_of_ranks(plan),
        "hosts": ", ".join(host.name for host in plan.hosts),
        "runtime": plan.runtime,
        "python": plan.python,
        "replaced steps": ", ".join(vendor_code.reported(init, "step")),
        "replaced hooks": ", ".join(vendor_code.reported(init, "hook")),
    }
    for name, version in sorted(_mapping(init.get("libraries")).items()):
        entries[f"library {name}"] = version
    return {name: str(value) for name, value in entries.items() if value not in (None, "")}


def _count(value: object) -> int | None:
    return whole(value) if math.isfinite(number(value)) else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
