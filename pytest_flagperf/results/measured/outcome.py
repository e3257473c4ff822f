"""What one round measured, from the files it left: its plan, its end and the ranks' logs, nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flagperf_driver.perflog import number
from pytest_flagperf.limits import LARGEST_COUNT
from pytest_flagperf.printable import printable_in
from pytest_flagperf.results import jsons
from pytest_flagperf.results.jsons import FormatError
from pytest_flagperf.results.logs import faults, monitors, ownlog, seen, typed
from pytest_flagperf.results.logs.faults import Exit, Failure, Place, RankEnd, RoundEnd
from pytest_flagperf.results.logs.ranges import Impossible, impossible_from_json
from pytest_flagperf.results.logs.ranklog import Evaluation, RankLog, Step, Target, read_rank, whole
from pytest_flagperf.results.logs.samples import Samples
from pytest_flagperf.results.measured import (
    busy,
    crosscheck,
    figure_pair,
    machine,
    metrics,
    sampled,
    stragglers,
    validity,
    vendor_code,
)
from pytest_flagperf.results.measured import phases as phases_of
from pytest_flagperf.results.measured.metrics import Metric
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf.results.measured.validity import Mark

__all__ = ["SCHEMA", "Evaluation", "Failure", "Metric", "Outcome", "Step", "Target", "measure"]

SCHEMA = 1
UNREADABLE = "unreadable"
_MOST_RANKS = 100_000
_FOLDER = re.compile(
    r"(?P<model>.+)_(?P<framework>[A-Za-z][^_]*(?:_[0-9][^_]*)?)_(?P<hardware>.+)"
    r"_(?P<nnodes>[1-9]\d{0,8})_(?P<nproc>[1-9]\d{0,8})_(?P<repeat>[1-9]\d{0,8})"
)


@dataclass(frozen=True)
class Work:
    """How much was trained, and in which portions; None where no rank said so."""

    samples: int | None = None
    steps: int | None = None
    epochs: float | None = None
    measured_steps: int | None = None
    measured_samples: int | None = None
    warmup_steps: int | None = None
    batch_per_card: int | None = None
    accumulation: int = 1
    samples_per_item: int = 1
    """At most: a suite whose batches hold items of several samples says how many, as ``samples_per_item``."""


@dataclass(frozen=True)
class Losses:
    """Every logged step of every rank was looked at, also those that the curve leaves out."""

    logged: int = 0
    bad: int = 0
    first_bad_step: int | None = None
    first_bad: float | None = None
    final: float | None = None


@dataclass(frozen=True)
class Quality:
    """The suite's metric as EVALUATE logged it, beside what the program says of itself."""

    evaluations: int = 0
    bad: int = 0
    best: float | None = None
    last: float | None = None
    reached: Evaluation | None = None
    program_converged: bool | None = None
    program_final: float | None = None


@dataclass(frozen=True)
class Outcome:
    """One round's result; ``ok`` says that it ran to its end, not that it converged."""

    case: str
    model: str
    framework: str
    vendor: str
    hardware: str
    nnodes: int
    nproc: int
    round: int
    seed: int | None
    scale: str
    synthetic: bool
    throughput_only: bool
    sample_unit: str
    state: str
    target: Target
    failures: tuple[Failure, ...] = ()
    compared: int = 0
    """How many pairs of figures were compared; each that contradicts is among the failures."""
    stop_reason: str | None = None
    metrics: tuple[Metric, ...] = ()
    steps: tuple[Step, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    untrained: Evaluation | None = None
    work: Work = Work()
    losses: Losses = Losses()
    quality: Quality = Quality()
    environment: Mapping[str, str] = field(default_factory=dict)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    started_ms: int | None = None
    ended_ms: int | None = None
    impossible: tuple[Impossible, ...] = ()
    """The logged figures that no training can have: they fail the round."""
    broken_lines: int = 0
    other_lines: int = 0
    logs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What a reader of the figures should know, though it broke nothing."""
    marks: tuple[Mark, ...] = ()
    """What bends the figures: under --strict a marked round fails."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """What it ran on, as the hosts said when it ran."""
    phases: tuple[Phase, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    """How much the config allows to be trained: max_steps, max_epochs, max_samples, where it says so."""
    parity_samples: int | None = None
    """Only so much was to be trained, to be judged by the reference's loss curve and not by the target."""
    reference: Mapping[str, Any] | None = None
    """The suite's reference curves, as the plan has them."""

    @property
    def ok(self) -> bool:
        return self.state == "finished" and not self.failures

    @property
    def busy(self) -> str:
        """What other work the cores of its hosts had; empty where they had none."""
        return "; ".join(mark.sentence for mark in self.marks if mark.kind == validity.BUSY)

    @property
    def ended_well(self) -> bool:
        """Whether every rank came to its end, though its figures may contradict each other."""
        return self.state == "finished" and all(one.kind == crosscheck.CONTRADICTION for one in self.failures)

    @property
    def meant_to_converge(self) -> bool:
        """Whether it was to be trained to the target."""
        return not self.throughput_only and self.parity_samples is None

    @property
    def cards(self) -> int:
        return self.nnodes * self.nproc

    @property
    def identity(self) -> tuple[int | None, int | None, int | None]:
        """What a copy of the round has too, in whatever run and under whatever number: its times and its seed."""
        return self.started_ms, self.ended_ms, self.seed

    @property
    def directory(self) -> Path:
        """Where the round lies in its run's directory."""
        return Path(self.case.replace(":", "_"), f"round{self.round}")

    @property
    def vendor_code(self) -> tuple[str, ...]:
        """What the vendor brings beside its config, as in "step backward"."""
        return vendor_code.names(self.fingerprint)

    @property
    def rate_unit(self) -> str:
        return f"{self.sample_unit}/s"

    def metric(self, name: str) -> Metric | None:
        return next((metric for metric in self.metrics if metric.name == name), None)

    def value(self, name: str) -> float | None:
        metric = self.metric(name)
        return None if metric is None else metric.value

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"schema": SCHEMA}
        body.update(jsons.sayable(self))
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str = "outcome") -> Outcome:
        jsons.check_schema(body, SCHEMA, where)
        try:
            outcome = _from_json(cls, body)
        except FormatError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{where}: is not an outcome: {type(error).__name__}: {error}") from error
        typed.check(outcome, where, besides=("steps", "evaluations"))  # these many are made of checked parts
        return outcome


def measure(round_dir: Path) -> Outcome:
    """The outcome of a round's directory; only an unreadable plan.json is an error, all else is a finding."""
    plan = _plan(round_dir / "plan.json")
    end, unreadable_end = _end(round_dir)
    target = _target(plan)
    places = _places(plan)
    warmup = whole(_mapping(plan.get("config")).get("timing_warmup_steps"))
    metric = _mapping(plan.get("metric"))
    unit = str(plan.get("sample_unit") or "")
    logs = {place.rank: read_rank(_log(round_dir, place), place.rank, target, warmup, metric, unit) for place in places}
    exits = {place.rank: _exit(round_dir, plan, end, place) for place in places}
    number_ = whole(plan.get("round")) or 1
    eyes = _seen(round_dir, places)
    failures = faults.find(number_, end, places, exits, logs, unreadable_end)
    phases = phases_of.of_round(logs.values(), _clock_offset(plan))
    own = metrics.of_round(plan, logs.values(), target)
    samples, training = monitors.read(round_dir), phases_of.training(phases)
    clocks = {place.rank: _clock_set(samples, eyes, place) for place in places}
    failures += tuple(ownlog.find(plan, end, places, logs, eyes, clocks))
    compared = 0
    if not failures:
        ranks = _compared_ranks(plan, end, places, logs, eyes, clocks, sampled.counted(samples, training))
        compared, failures = crosscheck.check(ranks, number_)
    p_whole = next((metric.value for metric in own if metric.name == "p_whole"), None)
    reports = monitors.reports(round_dir)
    load = busy.figures(samples, reports, training)
    found = (*own, *stragglers.spread(logs), *sampled.figures(samples, training, p_whole), *load)
    doubts = (*sampled.doubts(samples, training), *busy.doubts(samples, reports, training))
    said = (*monitors.warnings(round_dir), *monitors.dropped(samples), *doubts)
    warnings = (*_warnings(plan, end or {}), *stragglers.find(places, logs), *said)
    marks = (*validity.marks(round_dir, plan, samples, training), *vendor_code.marks(plan, logs.values()))
    ran_on = machine.facts(round_dir, plan, logs[places[0].rank].init_end)
    outcome = _outcome(round_dir, plan, end, target, failures, warnings, list(logs.values()), found, phases)
    return _printable(replace(outcome, marks=marks, machine=ran_on, compared=compared))


def _printable(outcome: Outcome) -> Outcome:
    """The outcome as everyone may show it: its texts come from ranks' logs and from hosts."""
    body = outcome.to_json()
    shown = printable_in(body)
    return outcome if shown == body else Outcome.from_json(shown)


def _seen(round_dir: Path, places: Iterable[Place]) -> dict[int, seen.Seen]:
    folders = dict.fromkeys(place.folder for place in places)
    return {rank: its for folder in folders for rank, its in seen.read(round_dir / folder).items()}


def _clock_set(samples: Mapping[str, Samples], eyes: Mapping[int, seen.Seen], place: Place) -> float:
    """By how much a rank's host's clock was set while it ran, at most: as its agent saw it, and as was sampled."""
    found = samples.get(place.folder)
    sampled_s = sum(abs(event.seconds) for event in found.events) if found else 0.0
    return sampled_s + (eyes[place.rank].clock_set_s if place.rank in eyes else 0.0)


def _compared_ranks(
    plan: Mapping[str, Any],
    end: Mapping[str, Any] | None,
    places: Iterable[Place],
    logs: Mapping[int, RankLog],
    eyes: Mapping[int, seen.Seen],
    clocks: Mapping[int, float],
    counted: tuple[sampled.Counted, ...],
) -> list[tuple[Place, figure_pair.Rank]]:
    places = list(places)
    first = logs[places[0].rank]
    started_ms = math.nan if first.train_start_ms is None else first.train_start_ms
    offsets = {place.rank: ownlog.offset_s(plan, place) for place in places}
    seconds = number((end or {}).get("seconds"))
    return [
        (
            place,
            figure_pair.Rank(
                plan,
                logs[place.rank],
                eyes.get(place.rank),
                first={} if place is places[0] else first.finished or {},
                first_start_ms=started_ms + 1000 * (offsets[place.rank] - offsets[places[0].rank]),
                round_s=seconds if math.isfinite(seconds) else None,
                clock_set_s=clocks[place.rank],
                counted=counted if place is places[0] else (),
            ),
        )
        for place in places
    ]


def _outcome(
    round_dir: Path,
    plan: Mapping[str, Any],
    end: Mapping[str, Any] | None,
    target: Target,
    failures: tuple[Failure, ...],
    warnings: tuple[str, ...],
    logs: list[RankLog],
    found: tuple[Metric, ...],
    phases: tuple[Phase, ...],
) -> Outcome:
    first = logs[0]
    finished = first.finished or {}
    return Outcome(
        case=str(plan.get("case", "")),
        model=str(plan.get("model", "")),
        framework=str(plan.get("framework", "")),
        vendor=str(plan.get("vendor", "")),
        hardware=str(plan.get("hardware", "")),
        nnodes=max(whole(plan.get("nnodes")), 1),
        nproc=max(whole(plan.get("nproc")), 1),
        round=whole(plan.get("round")) or 1,
        seed=_count(plan.get("seed")),
        scale=str(plan.get("scale", "")),
        synthetic=plan.get("synthetic") is not False,
        throughput_only=plan.get("throughput_only") is not False,
        sample_unit=str(plan.get("sample_unit") or "samples"),
        state=str(end.get("state", "unknown")) if end else "unknown",
        target=target,
        failures=failures,
        stop_reason=_text(finished.get("stop_reason")),
        metrics=found,
        steps=first.steps,
        evaluations=first.evaluations,
        untrained=first.untrained,
        work=_work(plan, finished),
        losses=_losses(logs, finished),
        quality=_quality(first, finished, target),
        environment=_environment(plan, first, finished),
        fingerprint=_fingerprint(plan, first.init_end),
        started_ms=_count(end.get("started_ms")) if end else None,
        ended_ms=_count(end.get("ended_ms")) if end else None,
        impossible=tuple(each for log in logs for each in log.impossible),
        broken_lines=sum(log.broken_lines for log in logs),
        other_lines=sum(log.other_lines for log in logs),
        logs=tuple(str(log.path.relative_to(round_dir)) for log in logs if log.present),
        warnings=warnings,
        limits=_limits(plan),
        parity_samples=_count(_mapping(plan.get("config")).get("parity_samples")),
        reference=_mapping(plan.get("reference")) or None,
        phases=phases,
    )


def _fingerprint(plan: Mapping[str, Any], init_end: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plan's, with what only a rank could know not to be the suite's own."""
    told, found = _mapping(plan.get("fingerprint")), _mapping(init_end.get("deviations"))
    return {**told, "deviations": {**_mapping(told.get("deviations")), **found}} if found else told


def _clock_offset(plan: Mapping[str, Any]) -> float:
    """How far the first host's clock was ahead of ours."""
    hosts = plan.get("hosts")
    first = hosts[0] if isinstance(hosts, list) and hosts and isinstance(hosts[0], dict) else {}
    offset = number(first.get("clock_offset_s"))
    return offset if math.isfinite(offset) else 0.0


def _plan(path: Path) -> Mapping[str, Any]:
    """What plan.json holds; FormatError where it names no possible ranks or folders."""
    plan = jsons.read(path)
    if not plan.get("case") or not isinstance(plan["case"], str):
        raise FormatError(f"{path}: case is {plan.get('case')!r:.40}; expected the case's name")
    cards = metrics.cards(plan)
    if cards > _MOST_RANKS:
        raise FormatError(f"{path}: nnodes x nproc is {cards:,}; expected at most {_MOST_RANKS:,} ranks")
    for host in jsons.objects(plan.get("hosts")):
        name = str(host.get("name") or "")
        if "/" in name or "\0" in name:
            raise FormatError(f"{path}: a host's name is {name!r:.40}; expected a name without / and NUL")
    return plan


def unreadable(round_dir: Path, reason: str) -> Outcome:
    """The failed outcome of a round whose record cannot be read: the case by its folder, and the reason."""
    names = _case_by_folder(round_dir.parent.name)
    number_ = whole("".join(filter(str.isdecimal, round_dir.name))) or 1
    failure = Failure(UNREADABLE, None, None, f"round {number_}: its record cannot be read: {reason}")
    return Outcome(
        **names,
        vendor="",
        round=number_,
        seed=None,
        scale="",
        synthetic=False,
        throughput_only=False,
        sample_unit="samples",
        state=UNREADABLE,
        target=Target("", "", "", None),
        failures=(failure,),
    )


def _case_by_folder(name: str) -> dict[str, Any]:
    """A case's fields from its folder's name; of a folder that somebody named otherwise the name alone."""
    found = _FOLDER.fullmatch(name)
    if found is None:
        return {"case": name, "model": name, "framework": "", "hardware": "", "nnodes": 1, "nproc": 1}
    return {
        "case": ":".join(found.groups()),
        **{field: found[field] for field in ("model", "framework", "hardware")},
        **{field: int(found[field]) for field in ("nnodes", "nproc")},
    }


def _end(round_dir: Path) -> tuple[Mapping[str, Any] | None, str | None]:
    """What round.json holds, or why it cannot be read; neither where the round was not ended in order."""
    path = round_dir / "round.json"
    if not path.exists():
        return None, None
    try:
        end = jsons.read(path)
        typed.check_json(end, RoundEnd, str(path))
    except FormatError as error:
        return None, str(error)
    return end, None


def _target(plan: Mapping[str, Any]) -> Target:
    metric = _mapping(plan.get("metric"))
    value = metric.get("target")
    return Target(
        name=str(metric.get("name") or ""),
        direction=str(metric.get("direction") or ""),
        unit=str(metric.get("unit") or ""),
        value=None if value is None else number(value),
    )


def _places(plan: Mapping[str, Any]) -> list[Place]:
    """The ranks that the plan wants, in order, whether they left something or not."""
    names = {
        whole(host.get("noderank")): str(host.get("name") or host.get("address") or "?")
        for host in jsons.objects(plan.get("hosts"))
    }
    nproc = max(whole(plan.get("nproc")), 1)
    return [
        Place(noderank * nproc + local, names.get(noderank, f"host{noderank}"), noderank)
        for noderank in range(max(whole(plan.get("nnodes")), 1))
        for local in range(nproc)
    ]


def _log(round_dir: Path, place: Place) -> Path:
    return round_dir / place.folder / f"rank{place.rank}.out.log"


def _exit(round_dir: Path, plan: Mapping[str, Any], end: Mapping[str, Any] | None, place: Place) -> Exit:
    """From round.json; where that does not know the rank, from what its agent wrote."""
    hosts = [host for host in (end or {}).get("hosts") or () if host.get("noderank") == place.noderank]
    ends = {whole(rank.get("rank")): rank for host in hosts for rank in host.get("ranks") or ()}
    if ends and plan.get("launcher") not in (None, "env"):
        # One process started all ranks of the host: its end stands for theirs.
        return _exit_of(ends[min(ends)], shared=True)
    if place.rank in ends:
        return _exit_of(ends[place.rank])
    path = round_dir / place.folder / f"rank{place.rank}.exit.json"
    try:
        body = jsons.read(path)
        typed.check_json(body, RankEnd, str(path))
        return _exit_of(body)
    except FormatError:
        return Exit()


def _exit_of(body: Mapping[str, Any], *, shared: bool = False) -> Exit:
    return Exit(body.get("code"), body.get("signal"), body.get("cause"), shared)


def _warnings(plan: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[str, ...]:
    privileged = _mapping(plan.get("interpreter")).get("privileged")
    told = [f"the ranks' container was privileged, as {privileged} asks"] if privileged else []
    told += [str(warning) for warning in end.get("warnings") or ()]
    told += [f"left after the end of the round, and removed: {line}" for line in end.get("swept") or ()]
    for item in end.get("missing") or ():
        how = "gone" if item.get("gone") else "missing, they are there in {log_dir}".format(**item)
        told.append(f"the logs of {item.get('host')} are {how}: {item.get('why')}")
    return tuple(told)


def _work(plan: Mapping[str, Any], finished: Mapping[str, Any]) -> Work:
    config = _mapping(plan.get("config"))
    epochs = number(finished.get("epochs"))
    return Work(
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


def _limits(plan: Mapping[str, Any]) -> dict[str, float]:
    config = _mapping(plan.get("config"))
    named = {name: number(config.get(name)) for name in ("max_steps", "max_epochs", "max_samples")}
    return {name: limit for name, limit in named.items() if 0 < limit < math.inf}


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
    said = finished.get("converged")
    final = _mapping(finished.get("final_metrics")).get(target.name)
    return Quality(
        evaluations=log.num_evaluations,
        bad=log.bad_metrics,
        best=log.best if math.isfinite(log.best) else None,
        last=log.last_evaluation.metrics.get(target.name) if log.last_evaluation else None,
        reached=log.reached,
        program_converged=said if isinstance(said, bool) else None,
        program_final=None if final is None else number(final),
    )


def _environment(plan: Mapping[str, Any], log: RankLog, finished: Mapping[str, Any]) -> dict[str, str]:
    """Every entry a text for people: what it ran on and with."""
    init = log.init_end
    hosts = [str(host.get("name")) for host in jsons.objects(plan.get("hosts"))]
    found: dict[str, object] = {
        "device": init.get("device"),
        "log": "of the original, with its names" if log.names.original else None,
        "framework": " ".join(filter(None, [_text(plan.get("framework")), _text(init.get("framework_version"))])),
        "precision": init.get("precision"),
        "compile": init.get("compile"),
        "world size": init.get("world_size"),
        "parameters": init.get("parameters"),
        "threads per rank": finished.get("threads"),
        "cores of each rank": machine.cores_of_ranks(plan),
        "hosts": ", ".join(hosts),
        "runtime": plan.get("runtime"),
        "launcher": plan.get("launcher"),
        "python": plan.get("python"),
        "replaced steps": ", ".join(vendor_code.reported(init, "step")),
        "replaced hooks": ", ".join(vendor_code.reported(init, "hook")),
    }
    for name, version in sorted(_mapping(init.get("libraries")).items()):
        found[f"library {name}"] = version
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def _listed(names: object) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


_LISTS = ("failures", "metrics", "steps", "evaluations", "logs", "warnings", "marks", "phases")


def _from_json(cls: type[Outcome], body: Mapping[str, Any]) -> Outcome:
    for name in _LISTS:
        if not isinstance(body.get(name, []), list):
            raise TypeError(f"{name} is {body[name]!r:.40}; expected a list")
    plain = {name: body[name] for name in cls.__dataclass_fields__ if name in body}
    plain["target"] = Target(**{**body["target"], "value": _float(body["target"]["value"])})
    plain["failures"] = tuple(
        Failure(**{**item, "last_lines": tuple(item["last_lines"])}) for item in body.get("failures", ())
    )
    plain["metrics"] = tuple(Metric(**{**item, "value": number(item["value"])}) for item in body.get("metrics", ()))
    plain["steps"] = tuple(_step(item) for item in body.get("steps", ()))
    plain["evaluations"] = tuple(_evaluation(item) for item in body.get("evaluations", ()))
    plain["untrained"] = _optional_evaluation(body.get("untrained"))
    plain["work"] = Work(**body.get("work", {}))
    losses = body.get("losses", {})
    plain["losses"] = Losses(
        **{**losses, "first_bad": _float(losses.get("first_bad")), "final": _float(losses.get("final"))}
    )
    quality = body.get("quality", {})
    floats = {name: _float(quality.get(name)) for name in ("best", "last", "program_final")}
    plain["quality"] = Quality(**{**quality, **floats, "reached": _optional_evaluation(quality.get("reached"))})
    plain["impossible"] = tuple(impossible_from_json(item) for item in body.get("impossible", ()))
    plain["logs"] = tuple(body.get("logs", ()))
    plain["warnings"] = tuple(body.get("warnings", ()))
    plain["marks"] = tuple(Mark(**item) for item in body.get("marks", ()))
    plain["phases"] = tuple(Phase(**item) for item in body.get("phases", ()))
    return cls(**plain)


def _step(item: Mapping[str, Any]) -> Step:
    return Step(
        _integer(item["step"]),
        _integer(item["samples"]),
        *(number(item[name]) for name in ("time", "loss", "throughput", "learning_rate")),
    )


def _evaluation(item: Mapping[str, Any]) -> Evaluation:
    values = {name: number(value) for name, value in item["metrics"].items()}
    step, samples = _integer(item["step"]), _integer(item["samples"])
    return Evaluation(step, samples, number(item["time"]), values, number(item.get("seconds")))


def _integer(value: object) -> int:
    if type(value) is not int or abs(value) > LARGEST_COUNT:
        raise TypeError(f"{value!r:.40} is not a count")
    return value


def _optional_evaluation(item: Mapping[str, Any] | None) -> Evaluation | None:
    return None if item is None else _evaluation(item)


def _float(value: object) -> float | None:
    return None if value is None else number(value)


def _count(value: object) -> int | None:
    return whole(value) if math.isfinite(number(value)) else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
