"""Measure a round from its files: the plan, round.json, the samples and the ranks' logs."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from flagperf_driver.layout import rank_log
from flagperf_driver.logged_step import STEP_FIGURES
from flagperf_driver.node.logs.points import MeasuredPoint
from flagperf_driver.node.logs.ranklog import RankLog, read_rank, whole
from flagperf_driver.node.logs.samples import Samples
from flagperf_driver.node.logs.summary import HostSummary, Request
from flagperf_driver.perflog import number
from flagperf_driver.target import Target
from pytest_flagperf.kind import kind_of
from pytest_flagperf.printable import printable_in
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.logs import failures as failures_of
from pytest_flagperf.results.logs import host_summaries, log_ownership, milestone_times, monitors
from pytest_flagperf.results.logs.failures import RankLocation
from pytest_flagperf.results.logs.milestone_times import MilestoneTimes
from pytest_flagperf.results.logs.points import of_ranks
from pytest_flagperf.results.measured import (
    busy,
    consistency,
    costs,
    equal_rounds,
    machine,
    sampled,
    starts,
    stragglers,
    validity,
    vendor_code,
)
from pytest_flagperf.results.measured import phases as phases_of
from pytest_flagperf.results.measured import profile as profiles
from pytest_flagperf.results.measured.consistency_pairs import RankFigures
from pytest_flagperf.results.measured.metrics import MetricValue, as_count, of_points, step_flops
from pytest_flagperf.results.measured.outcome import (
    LoggedRound,
    Losses,
    MetricQuality,
    Outcome,
    PlannedRound,
    Quality,
    TrainingWork,
    unreadable,
)
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf.results.measured.profile import FlopsAndPeaks, Profile
from pytest_flagperf.results.measured.replay import Replay
from pytest_flagperf.results.measured.replay import read as read_replay
from pytest_flagperf.results.measured.starts import Chain, StartFiles
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.plan import VERSION, StoredPlan
from pytest_flagperf.stored.round_dir import RankEnd, RoundDir, RoundFault, RoundRecord, earlier_tries

Reports = Mapping[str, Mapping[str, Any]]
Points = tuple[MeasuredPoint, ...]


class StoredRound:
    """What a round left: its plan, its record, and the logs of its ranks, agents and samplers; each is read once."""

    def __init__(self, path: Path) -> None:
        """Read the plan and the record; raise FormatError for an unreadable plan."""
        self.path, self._files = path, RoundDir(path)
        self.plan = self._files.read_plan()
        nproc = self.plan.case.nproc
        self.places = [
            RankLocation(noderank * nproc + local, self.plan.host(noderank).name, noderank)
            for noderank in range(self.plan.shape.nnodes)
            for local in range(nproc)
        ]
        self.end: RoundRecord | None = None
        self.unreadable_end: str | None = None
        try:
            self.end = self._files.read_record() if self._files.has_record else None
        except FormatError as error:
            self.unreadable_end = str(error)

    @cached_property
    def logs(self) -> dict[int, RankLog]:
        return {place.rank: self.read_log(place) for place in self.places}

    def read_log(self, place: RankLocation) -> RankLog:
        """Read the log of one rank; if it stays on its host, return what the host's summary says of it."""
        plan, path = self.plan, self.path / place.folder / rank_log(place.rank)
        summary = self.summaries.get(place.folder)
        if summary is not None and place.folder not in self.summaries_to_check:
            log = summary.ranks[place.rank % plan.case.nproc]
            log.path, log.is_summary = path, True
            return log
        return read_rank(path, place.rank, plan.metric, self.warmup, plan.sample_unit, orjson.loads)

    @property
    def warmup(self) -> int:
        return whole(self.plan.config.get("timing_warmup_steps"))

    @cached_property
    def first(self) -> RankLog:
        return self.read_log(self.places[0])

    # -- hosts that summed up their files ------------------------------------------------------------------------

    @cached_property
    def summaries(self) -> dict[str, HostSummary]:
        """The summaries of hosts by their folders; FormatError if a file is not a summary."""
        nproc = self.plan.case.nproc
        of_hosts = (
            (host.folder, host_summaries.read(self.path / host.folder, self._ranks(host.noderank)))
            for host in self.plan.hosts[: len(self.places) // nproc]
        )
        return {folder: summary for folder, summary in of_hosts if summary is not None}

    @cached_property
    def summaries_to_check(self) -> frozenset[str]:
        """The folders that have both the summary and the files."""
        return frozenset(
            folder
            for folder, summary in self.summaries.items()
            if host_summaries.has_long_files(self.path / folder, summary)
        )

    def summary_request(self, noderank: int) -> Request:
        """Return what a host must sum up: its ranks' logs, and its samples of the times that the figures need."""
        plan = self.plan
        ranks, offset_s = list(self._ranks(noderank)), plan.host(noderank).clock_offset_s
        return Request(ranks, plan.metric, self.warmup, plan.sample_unit, self._windows, offset_s)

    @cached_property
    def _windows(self) -> list[tuple[float, float]]:
        """The times of which the figures need samples, by the first rank's log alone."""
        phases = phases_of.of_round([self.first], self.plan.host(0).clock_offset_s)
        needed = phases_of.training(phases), phases_of.after_warm_up(phases) if self.plan.throughput_only else None
        return list(dict.fromkeys((phase.start, phase.end) for phase in needed if phase is not None))

    def _ranks(self, noderank: int) -> range:
        nproc = self.plan.case.nproc
        return range(noderank * nproc, (noderank + 1) * nproc)

    @cached_property
    def chain(self) -> Chain | None:
        """All starts of a training that this round continued."""
        return starts.chain(self.plan, start_of(self), map(start_of, earlier_starts(self)))

    @cached_property
    def exits(self) -> dict[int, RankEnd]:
        """The exit of each rank from round.json; without an entry there from the agent's file."""
        known = {
            (host.noderank, rank.rank): rank for host in (self.end.hosts if self.end else ()) for rank in host.ranks
        }
        exits = {}
        for place in self.places:
            end = known.get((place.noderank, place.rank))
            with suppress(FormatError):
                end = end or self._files.read_rank_end(place.folder, place.rank)
            exits[place.rank] = end or RankEnd(place.rank)
        return exits

    @cached_property
    def seen(self) -> dict[str, tuple[dict[int, MilestoneTimes], str | None]]:
        """What the agent of each host saw, by its folder."""
        folders = dict.fromkeys(place.folder for place in self.places)
        return {folder: milestone_times.read(self.path / folder) for folder in folders}

    @cached_property
    def milestones(self) -> dict[int, MilestoneTimes]:
        return {rank: times for ranks, _ in self.seen.values() for rank, times in ranks.items()}

    @cached_property
    def samples(self) -> dict[str, Samples]:
        return monitors.read(self.path, summaries=self.summaries)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        return phases_of.of_round(self.logs.values(), self.plan.host(0).clock_offset_s)

    @property
    def training(self) -> Phase | None:
        return phases_of.training(self.phases)

    @property
    def sampled(self) -> Phase | None:
        """The time whose samples count: the training, without the warm-up if only the throughput is measured."""
        return phases_of.after_warm_up(self.phases) if self.plan.throughput_only else self.training

    @cached_property
    def clocks(self) -> dict[int, float]:
        """The most seconds by which the clock of each rank's host was set, by its agent and by the sampler."""
        on_hosts = {
            folder: sum(abs(event.seconds) for event in samples.events) for folder, samples in self.samples.items()
        }
        seen = {rank: times.clock_set_s for rank, times in self.milestones.items()}
        return {place.rank: on_hosts.get(place.folder, 0.0) + seen.get(place.rank, 0.0) for place in self.places}


def measure(round_dir: Path) -> Outcome:
    """Return the outcome of a round; raise FormatError only for an unreadable plan.json, all else is a failure."""
    was_on = gc.isenabled()
    gc.disable()  # the figures of all ranks are kept until the end, and would be searched for cycles again and again
    try:
        return _measure(round_dir)
    finally:
        if was_on:
            gc.enable()


def _measure(round_dir: Path) -> Outcome:
    measured_round = StoredRound(round_dir)
    plan, outcome = measured_round.plan, _outcome(measured_round)
    if plan.token is not None:
        outcome = replace(outcome, failures=(*outcome.failures, *equal_rounds.find(round_dir, outcome)))
    if outcome.ok:
        chip = machine.unverified_chip(round_dir, plan, measured_round.first.init_end)
        # The peak of an unknown chip is unknown; a share above 100 % of the declared peak remains, and fails.
        metrics = tuple(one for one in outcome.metrics if one.name != "mfu" or not chip or one.value > 1)
        outcome = replace(outcome, unverified_chip=chip, metrics=metrics)
    return _printable(outcome)


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


def start_of(of: StoredRound) -> StartFiles:
    """Return what a round left, as one start of its training."""
    return StartFiles(of.path.name, of.end, of.first, of.plan.host(0).clock_offset_s, of.plan.shape.nnodes)


def earlier_starts(of: StoredRound) -> Iterator[StoredRound]:
    """Yield the tries of a round that were earlier starts of its training, and that can be read."""
    for directory in earlier_tries(RoundDir(of.path)):
        with suppress(FormatError):
            earlier = StoredRound(directory.path)
            if earlier.plan.training == of.plan.training:
                earlier.first  # noqa: B018 - raises for a log that cannot be read
                yield earlier


def _failures(of: StoredRound) -> tuple[int, tuple[RoundFault, ...]]:
    """Return the number of compared pairs of figures, which are compared if nothing else failed, and the failures."""
    failures = failures_of.find(of.plan.round, of.end, of.places, of.exits, of.logs, of.unreadable_end)
    failures += tuple(log_ownership.find(of.plan, of.end, of.places, of.logs, of.milestones, of.clocks))
    failures += tuple(_wrong_summaries(of))
    return (0, failures) if failures else consistency.check(_compared_ranks(of), of.plan.round)


def _wrong_summaries(of: StoredRound) -> Iterator[RoundFault]:
    """Yield a failure for each host whose summary is not that of its files."""
    for host in of.plan.hosts:
        if host.folder in of.summaries_to_check:
            found = host_summaries.difference(of.path / host.folder, of.summary_request(host.noderank))
            if found:
                sentence = f"round {of.plan.round}: {host.name}: its summary differs from its files: {found}"
                yield RoundFault(log_ownership.LOG, host.name, None, sentence)


def _compared_ranks(of: StoredRound) -> list[tuple[RankLocation, RankFigures]]:
    plan, clocks, first = of.plan, of.clocks, of.places[0]
    started_ms = math.nan if of.first.train_start_ms is None else of.first.train_start_ms
    offsets = {place.rank: plan.host(place.noderank).clock_offset_s for place in of.places}
    lost_s = sum(validity.unreachable_s(of.end, of.training).values())
    # Ranks that stood still with a host may need the same time again until they continue.
    stood_still_s = 2 * lost_s + busy.waited_s(of.samples, of.training)
    return [
        (
            place,
            RankFigures(
                plan.config,
                plan.data_ranks,
                of.logs[place.rank],
                of.milestones.get(place.rank),
                first={} if place is first else of.first.finished or {},
                first_start_ms=started_ms + 1000 * (offsets[place.rank] - offsets[first.rank]),
                first_points=None if place is first else of.first.names_of_points,
                round_s=of.end.seconds if of.end else None,
                clock_set_s=clocks[place.rank],
                stood_still_s=stood_still_s,
                left_out=plan.left_out,
                saves_states=plan.saves_states,
                counted=sampled.counted(of.samples, of.training) if place is first else (),
                chain=of.chain if place is first else None,
            ),
        )
        for place in of.places
    ]


def _outcome(of: StoredRound) -> Outcome:
    """Put together what the plan, the logs, the record and the samples of a round say."""
    compared, failures = _failures(of)
    # The first log with the curve of all starts, and those of the other ranks.
    joined = [of.chain.joined(of.plan.metric) if of.chain else of.first, *[*of.logs.values()][1:]]
    reports, points = monitors.reports(of.path), of_ranks((log.points for log in of.logs.values()), of.plan.figures)
    points = kind_of(of.plan).derived(points, of.plan, of.first.path.parent, of.samples)
    replay = read_replay(of.path, of.plan)
    return Outcome(
        **vars(_planned(of)),
        **vars(_logged(of, joined, points)),
        state=of.end.state if of.end else "unknown",
        started_ms=of.end.started_ms if of.end else None,
        ended_ms=of.end.ended_ms if of.end else None,
        failures=failures,
        compared=compared,
        metrics=(*_metrics(of, joined, points, reports), *_gain(of.plan, replay, of.first.finished or {})),
        profile=_profile(of.plan, of.first)[0],
        replay=replay,
        warnings=tuple(_warnings(of, reports)),
        validity_warnings=(
            *validity.validity_warnings(of.path, of.plan, of.samples, of.training),
            *validity.unreachable(of.end, of.training),
            *vendor_code.validity_warnings(of.plan, list(of.logs.values())),
            *vendor_code.confinement(of.plan, of.seen)[0],
            *vendor_code.not_repeated(of.plan),
            *([validity.restarted(of.chain.costs(of.first.finished))] if of.chain else []),
        ),
        machine=machine.facts(of.path, of.plan, of.first.init_end),
    )


def _planned(of: StoredRound) -> PlannedRound:
    plan = of.plan
    facts = {
        "sample_unit": plan.sample_unit or "samples",
        "fingerprint": _fingerprint(plan, of.first.init_end),
        "reference": plan.reference or None,
    }
    return PlannedRound(
        **{**plan.facts(), **facts},
        case=str(plan.case),
        model=plan.case.model,
        framework=plan.case.framework_name,
        hardware=plan.case.hardware,
        nnodes=plan.shape.nnodes,
        nproc=plan.case.nproc,
        round=plan.round,
        seed=plan.seed,
        target=plan.metric,
        hosts=tuple(plan.host(noderank).name for noderank in range(plan.shape.nnodes)),
        limits=_limits(plan),
        drill=() if plan.throughput_only else plan.drill,
        parity_samples=as_count(plan.config.get("parity_samples")),
    )


def _logged(of: StoredRound, joined: Sequence[RankLog], points: Points) -> LoggedRound:
    plan, chain, first, logs = of.plan, of.chain, joined[0], list(of.logs.values())
    finished = of.first.finished or {}
    return LoggedRound(
        stop_reason=_text(finished.get("stop_reason")),
        steps=first.steps,
        evaluations=first.evaluations,
        untrained=first.untrained,
        drawings=first.drawings.all(),
        points=points,
        left_out=tuple({point.name: point for log in logs for point in log.left_out}.values()),
        bad_points=sum(log.bad_points for log in logs),
        work=_work(plan, finished),
        losses=_losses(joined, finished),
        quality=_quality(first, finished, plan.metric),
        environment=_environment(plan, of.first, finished),
        impossible=(*(figure for log in logs for figure in log.impossible), *(chain.impossible if chain else ())),
        broken_lines=sum(log.broken_lines for log in logs),
        other_lines=sum(log.other_lines for log in logs),
        logs=tuple(log.path.relative_to(of.path).as_posix() for log in logs if log.present and not log.is_summary),
        starts=chain.starts if chain else (),
        lost_s=chain.lost_s(of.first.finished) if chain else {},
        struck=tuple(starts.drilled(chain.files if chain else [start_of(of)])),
        phases=of.phases,
    )


def _metrics(of: StoredRound, joined: Sequence[RankLog], points: Points, reports: Reports) -> Iterator[MetricValue]:
    """Yield those of the logs, of all starts, of the ranks among each other, and of the samples."""
    logged = kind_of(of.plan).measure(of.plan, joined, len(of.chain.files) if of.chain else 1)
    reported = (*of_points(of.plan, points), *logged)
    yield from reported
    yield from of.chain.figures(of.first.finished) if of.chain else _goodput(of)
    yield from stragglers.spread(of.logs)
    rate = next((one for one in reported if one.name == ("p_core" if of.plan.throughput_only else "p_whole")), None)
    # The samples of a restarted training are of its last start alone.
    more = f", the last of {of.chain.count} starts alone" if of.chain else ""
    meanwhile = (*sampled.figures(of.samples, of.sampled, rate), *busy.figures(of.samples, reports, of.training))
    for metric in meanwhile:
        yield replace(metric, how=f"{metric.how}{more}")
    # The energy of earlier starts is unknown.
    ends_at_target = not of.chain and joined[0].reached is not None and joined[0].reached == joined[0].last_evaluation
    known = {metric.name: metric for metric in (*reported, *meanwhile)}
    yield from costs.figures(of.plan, known, rate, ends_at_target=ends_at_target)


def _gain(plan: StoredPlan, replay: Replay | None, finished: Mapping[str, Any]) -> Iterator[MetricValue]:
    """Yield how many times as fast as the clean process's the steps of a training with a vendor's code were."""
    own = number(_mapping(finished.get("step_time")).get("p50"))
    if vendor_code.names(plan.fingerprint) and replay and replay.step_time and own > 0:
        how = f"the median time of {replay.steps} in the replay"
        yield MetricValue("vendor_factor", replay.step_time / own, "x", None, f"{how} over that of the measured steps")


def _goodput(of: StoredRound) -> Iterator[MetricValue]:
    """Yield the goodput of a training that needed no restart, if the plan asks for it."""
    own, kept = start_of(of), starts.kept_s(of.first.finished)
    wall = own.ended_s - own.started_s
    if (of.plan.drill or of.plan.min_goodput) and math.isfinite(kept) and wall > 0:
        yield starts.goodput(kept, wall, "the time of its only start")


def _profile(plan: StoredPlan, log: RankLog) -> tuple[Profile | None, tuple[str, ...]]:
    """Return the profile, or the reason why the rank's record is not one."""
    finished = log.finished or {}
    value = finished.get("profile")
    if value is None:
        return None, ()
    try:
        work = FlopsAndPeaks(
            step_flops(plan, finished),
            plan.peak_tflops * 1e12 if plan.peak_tflops else None,
            plan.peaks.get("memory_gb_s"),
        )
        return profiles.of_record(value, work, f"rank {log.rank}: no profile"), ()
    except FormatError as error:
        return None, (str(error),)


def _fingerprint(plan: StoredPlan, init_end: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plan's fingerprint with the versions that the host deviates in, and the deviations that the rank reported."""
    fingerprint, reported = plan.fingerprint, _mapping(init_end.get("deviations"))
    versions = {f"{VERSION} {one.key}": [one.value, one.reference] for one in plan.other_versions}
    if not versions and not reported:
        return fingerprint
    return {**fingerprint, "deviations": {**_mapping(fingerprint.get("deviations")), **versions, **reported}}


def _warnings(of: StoredRound, reports: Reports) -> Iterator[str]:
    """Yield the remarks of all sources."""
    yield from of.chain.remarks() if of.chain else ()
    if privileged := of.plan.interpreter.get("privileged"):
        yield f"the ranks' container was privileged, as {privileged} requests"
    if of.end is not None:
        yield from of.end.warnings
        yield from (f"removed after the end of the round: {line}" for line in of.end.swept)
        for item in of.end.missing:
            how = "gone" if item.gone else f"missing here; they are on the host in {item.log_dir}"
            yield f"the logs of {item.host} are {how}: {item.why}"
    if of.summaries:
        kept = count(len(of.summaries) - len(of.summaries_to_check), "host")
        checked = f"those of {count(len(of.summaries_to_check), 'host')} were compared with their summaries"
        yield f"the logs and series of {kept} stay there (flagperf show --fetch-logs fetches them); {checked}"
    yield from _profile(of.plan, of.first)[1]
    yield from vendor_code.confinement(of.plan, of.seen)[1]
    yield from stragglers.find(of.places, of.logs)
    yield from monitors.warnings(of.path)
    yield from monitors.dropped(of.samples)
    yield from sampled.energy_warnings(of.samples, of.training)
    yield from busy.own_load_warnings(of.samples, reports, of.training)


def _work(plan: StoredPlan, finished: Mapping[str, Any]) -> TrainingWork:
    config = plan.config
    epochs = number(finished.get("epochs"))
    return TrainingWork(
        samples=as_count(finished.get("samples")),
        steps=as_count(finished.get("steps")),
        epochs=epochs if math.isfinite(epochs) else None,
        measured_steps=as_count(finished.get("measured_steps")),
        measured_samples=as_count(finished.get("measured_samples")),
        warmup_steps=as_count(finished.get("warmup_steps")),
        step_flops=step_flops(plan, finished),
        batch_per_card=as_count(config.get("train_batch_size")),
        data_ranks=plan.data_ranks,
        accumulation=whole(config.get("gradient_accumulation_steps")) or 1,
        samples_per_item=whole(config.get("samples_per_item")) or 1,
    )


_LIMITS = ("max_steps", "max_epochs", "max_samples", *(f"max_{name}" for name in STEP_FIGURES))


def _limits(plan: StoredPlan) -> dict[str, float]:
    limits = {name: number(plan.config.get(name)) for name in _LIMITS}
    limits["min_goodput"] = number(plan.min_goodput)
    return {name: limit for name, limit in limits.items() if 0 < limit < math.inf}


def _losses(logs: Sequence[RankLog], finished: Mapping[str, Any]) -> Losses:
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
    init, framework = log.init_end, kind_of(plan).framework or plan.case.framework_name
    entries: dict[str, object] = {
        "device": init.get("device"),
        "log": "of FlagPerf, with its names" if log.names.original else None,
        "framework": " ".join(filter(None, [framework, _text(init.get("framework_version"))])),
        "precision": init.get("precision"),
        "compile": init.get("compile"),
        "world size": init.get("world_size"),
        "parallel": init.get("parallel"),
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


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
