"""The stored plan of a round: what ran, where, and with which config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from flagperf_driver.target import Target
from flagperf_driver.training.parallel import DDP, Parallel, ParallelError
from pytest_flagperf.case import Case, CaseError, Shape
from pytest_flagperf.kind import kind_named, kind_of
from pytest_flagperf.printable import printable_in
from pytest_flagperf.problems import Problems
from pytest_flagperf.typed import Either, Rule

from . import type_check
from .files import FormatError, check_schema, read, to_json_types
from .layout import host_folder

SCHEMA = 1
VERSION = "version"
"""The first word of a fingerprint's deviation that is an installed package with another version than required."""
KNOWN_PROBLEM = "known problem"
"""The first words of an addition's name that is a problem which the vendor states."""
_MOST_RANKS = 100_000
_READ_FIRST = {
    "case": str,
    "metric": {"target?": Either((float, None))},
    "values?": Mapping[str, Mapping[str, Any]],
    "config?": Mapping[str, Any],
}
_AS_WRITTEN = ("hosts", "chip_names")
TRAINING, MEASUREMENT = "training", "measurement"
"""The kinds of suites."""
THROUGHPUTS = ("p_whole", "p_train", "p_core")
"""The figures of a training that are judged against earlier rounds, because their noise is small."""
MAIN_THROUGHPUT = "p_core"
RANK, HOST, LINK = FAULTS = ("rank", "host", "link")
"""The faults of --drill: a rank is killed, a host with all its processes is lost, the link to a host is cut."""
BEST, WORST, LAST = "best", "worst", "last"
"""Which point of a figure is the case's: the best one, the worst one, or the one with the largest value of ``over``."""


def split_faults(drill: str | None) -> tuple[str, ...]:
    return () if drill is None else tuple(drill.split(","))


MOST_OF_PEAK = 1.05
"""The largest share of a declared peak: peaks are of a nominal clock."""


@dataclass(frozen=True)
class MeasuredFigure:
    """A figure of a measurement, as its suite declares it, with what the vendor declares of the chip."""

    name: str
    unit: str
    """The unit of the log, such as B/s; reports scale it."""
    direction: str
    about: str = ""
    """Its meaning in a sentence."""
    over: str = ""
    """The name of the value that varies between its points."""
    pick: str = BEST
    optional: bool = False
    """It may be missing where the chip declares no peak of it."""
    at_least: float | None = None
    """The least value of a valid measurement, whatever the chip."""
    variation: float = 0.1
    """The largest share by which rounds, and a point's own windows, may vary."""
    peak: float | None = None
    """The chip's declared peak, in the figure's unit."""
    promised: float | None = None
    """The share of the peak that the vendor promises."""

    @property
    def is_required(self) -> bool:
        return not self.optional or self.peak is not None

    def is_possible(self, value: float) -> bool:
        """Return False for a value that exceeds the declared peak."""
        return self.peak is None or value <= self.peak * MOST_OF_PEAK


@dataclass(frozen=True)
class LeftOutTimeLimits:
    """The most that p_core may leave out of the training's time; beyond it the round fails."""

    waiting: float = 0.2
    """Waiting for input: the share of the training without evaluations."""
    evaluation: float = 3.0
    """The model's time for an evaluated sample, as a multiple of the forward time of a trained one."""
    summarizing: float = 0.1
    """Loading the batches of evaluations, joining and summarizing their results: the share of the training."""
    rest: float = 0.05
    """All that has no name, such as logging: the share of the training."""


_AMOUNT = Annotated[float, Rule("a number from 0", lambda number: 0 <= number < math.inf)]
_CURRENCY = Annotated[str, Rule("a text such as EUR", str.strip)]


@dataclass(frozen=True)
class Price:
    """What a site says of the cost of its chips: the table [price] of flagperf.toml."""

    per_hour: Mapping[str, _AMOUNT]
    """The price of one chip for an hour, by the chips' names in vendor.toml, as in ``{ H100 = 2.5 }``."""
    currency: _CURRENCY
    """The currency of the prices, which reports write after each cost."""
    co2_g_per_kwh: _AMOUNT | None = None
    """The grams of carbon dioxide that a kilowatt-hour of the site emits; without it no report has emissions."""


@dataclass(frozen=True)
class StoredHost:
    """A host of the round: its devices, its folders and its clock."""

    name: str
    noderank: int
    address: str = ""
    devices: tuple[int, ...] = ()
    cores: tuple[str, ...] = ()
    """The cores that each process was bound to; an empty string: any core."""
    log_dir: str = ""
    code_root: str = ""
    clock_offset_s: float = 0.0
    """Clock of the host minus clock of the controller."""
    python: str = ""

    @property
    def folder(self) -> str:
        """The folder of the host's logs in the round's directory."""
        return host_folder(self.name, self.noderank)


EACH = "--each"
"""The source of a value that the variant of a case sets."""
PEAKS = {"float8": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
"""The peak that a chip needs for these precisions; a CPU emulates them."""


@dataclass(frozen=True)
class Value:
    """A value of the config and where it was set; layers are defaults, suite, scale, vendor, setting and case."""

    value: Any = None
    file: str = ""
    line: int = 0
    layer: str = ""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


def config_of(values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the values without their places."""
    return {key: value.value for key, value in values.items()}


@dataclass(frozen=True)
class Deviation:
    """A config key whose value differs from the suite's at the same scale, or a package's version from the required."""

    key: str
    value: Any = None
    reference: Any = None
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Addition:
    """An addition of a vendor beside its config, such as a step or a package; its default without the vendor."""

    name: str
    value: str = ""
    reference: str = ""
    file: str = ""
    line: int = 0
    runs_code: bool = True
    """Whether it can bring code into the ranks; a plain value of a variable cannot."""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, kw_only=True)
class CaseFacts:
    """What a case is besides its name: the same in its plan and in the outcomes of its rounds."""

    vendor: str
    scale: str
    synthetic: bool
    throughput_only: bool
    sample_unit: str
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    reference: Mapping[str, Any] | None = None
    """The suite's reference curves at this scale, to judge the round by."""
    kind: str = TRAINING
    figures: tuple[MeasuredFigure, ...] = ()
    """The figures of a measurement; the first one is the suite's metric."""
    replaced_vendor: str = ""
    """What has a vendor of this name, which the vendor's folder replaces; empty if it replaces none."""

    @property
    def judged(self) -> tuple[str, ...]:
        """The names of the figures that are judged against earlier rounds."""
        of_kind = kind_of(self).judged
        return tuple(one.name for one in self.figures if not of_kind or one.name in of_kind) or of_kind

    @property
    def main(self) -> str:
        """The name of the figure that stands for the round where only one is shown."""
        return self.figures[0].name if self.figures else kind_of(self).main

    def facts(self) -> dict[str, Any]:
        """Return the facts by name, for another record of the same case."""
        return {item.name: getattr(self, item.name) for item in fields(CaseFacts)}


@dataclass(frozen=True, kw_only=True)
class PlanFacts(CaseFacts):
    """What a plan has before and after it is stored; all texts are printable, except names and paths of hosts."""

    case: Case
    nnodes: int = 0
    """The hosts of this start, fewer than the case's if others were lost (``fewest-hosts``); 0: as many."""
    metric: Target
    device: str = ""
    chip_names: tuple[str, ...] = ()
    """Regular expressions for the name that the chip's devices report; without any, the chip's own name."""
    chip_pci: tuple[str, ...] = ()
    """Once for each device that a PCI device of this id has."""
    runtime: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    deviations: tuple[Deviation, ...] = ()
    additions: tuple[Addition, ...] = ()
    """The vendor's steps, hooks, variables, packages and extensions."""
    left_out: LeftOutTimeLimits | None = None
    """None in older plans."""
    flops_per_sample: float | None = None
    peak_tflops: float | None = None
    peak_source: str = ""
    """The dense peak of one card at the config's precision."""
    peaks: Mapping[str, float] = field(default_factory=dict)
    """All peaks that the vendor declares of the chip, in FLOP/s and B/s, by their keys in vendor.toml."""
    price: Price | None = None
    replay: Mapping[str, Any] = field(default_factory=dict)
    """As in ``RunCase``: the folder of the states, and the segments that are repeated; empty without a replay."""
    drill: tuple[str, ...] = ()
    """The faults that strike a training to its target, in order."""
    min_goodput: float | None = None
    memory: Mapping[str, float] = field(default_factory=dict)
    """The estimated bytes of each part that a rank holds at the peak of a step; empty if the suite estimates none."""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The values without their places, as the ranks read them."""
        return config_of(self.values)

    @property
    def shape(self) -> Shape:
        """The hosts and processes that run."""
        return Shape(self.nnodes or self.case.nnodes, self.case.nproc)

    @property
    def parallel(self) -> Parallel:
        """How the ranks share the model and the samples."""
        return Parallel.of(self.config.get("parallel", DDP), self.shape.cards)

    @property
    def data_ranks(self) -> int:
        """The number of ranks, or groups of ranks, that read different samples."""
        return self.parallel.data_ranks

    @property
    def saves_states(self) -> bool:
        """Whether a training saves states for its replay; the clean process, which reads them, saves none."""
        return "states" in self.replay and "segments" not in self.replay

    @property
    def devices_are_cores(self) -> bool:
        return is_cpu(self.device)


@dataclass(frozen=True, kw_only=True)
class StoredPlan(PlanFacts):
    """The contents of plan.json."""

    round: int
    seed: int
    hosts: tuple[StoredHost, ...]
    python: str = ""
    token: str | None = None
    """The token that the ranks' logs repeat."""
    training: str = ""
    """The name of the training, which its checkpoints have."""
    interpreter: Mapping[str, Any] = field(default_factory=dict)
    other_versions: tuple[Deviation, ...] = ()
    """The installed packages with another version than the suite requires."""
    checkout: Mapping[str, Any] = field(default_factory=dict)
    monitors: Mapping[str, Any] | None = None
    """The monitors of the round; None if it has no monitors."""
    bind: bool = True

    @property
    def cards(self) -> int:
        return self.shape.cards

    def host(self, noderank: int) -> StoredHost:
        """Return the host with this number; a host with a made-up name if the plan does not list it."""
        return self._hosts.get(noderank) or StoredHost(f"host{noderank}", noderank)

    @cached_property
    def _hosts(self) -> Mapping[int, StoredHost]:
        return {host.noderank: host for host in reversed(self.hosts)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str) -> StoredPlan:
        """Check and convert a stored plan; raise FormatError with the invalid key, its value and the expected type."""
        check_schema(body, SCHEMA, where)
        type_check.check(body, _READ_FIRST, where)
        shown = printable_in({name: value for name, value in body.items() if name not in _AS_WRITTEN})
        metric = {**shown["metric"], "value": body["metric"].get("target")}
        known = {**body, **shown, "case": _case(body["case"], where), "metric": metric, "values": _values(shown)}
        plan = type_check.typed(cls, known, where)
        _check(plan, where)
        return plan


def metric_json(metric: Target) -> dict[str, Any]:
    """Return the metric as plan.json and case.json have it, with its value as ``target``."""
    return {"target" if name == "value" else name: to_json_types(value) for name, value in vars(metric).items()}


def package_of(deviation: str) -> str:
    """Return the package whose version deviates; empty if the fingerprint's deviation is not one of a version."""
    kind, _, package = deviation.partition(" ")
    return package if kind == VERSION else ""


def is_cpu(device: str) -> bool:
    """Return True if a framework's name of the vendor's devices means cores of the host, such as cpu or CPU."""
    return device.lower() == "cpu"


def read_plan(path: Path) -> StoredPlan:
    return StoredPlan.from_json(read(path), str(path))


def check_kind(kind: str, where: str) -> None:
    """Raise FormatError for a kind of suites that neither pytest-flagperf nor an installed package has."""
    try:
        kind_named(kind)
    except Problems as error:
        raise FormatError(f"{where}: {error}") from None


def _case(text: str, where: str) -> Case:
    try:
        case = Case.parse(text)
    except CaseError as error:
        raise FormatError(f"{where}: {error}") from error
    if case.shape.cards > _MOST_RANKS:
        raise FormatError(f"{where}: nnodes x nproc is {case.shape.cards:,}; expected at most {_MOST_RANKS:,} ranks")
    return case


def _values(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config's values; the plans of version 0.1 also have them as ``config``, without their places."""
    values, config = body.get("values", {}), body.get("config", {})
    return {**values, **{key: {**values.get(key, {}), "value": value} for key, value in config.items()}}


def _check(plan: StoredPlan, where: str) -> None:
    """Raise FormatError for what the types allow and a plan does not."""
    check_kind(plan.kind, where)
    if not 0 <= plan.nnodes <= plan.case.nnodes:
        raise FormatError(f"{where}: nnodes is {plan.nnodes:,}; expected at most {plan.case.nnodes}, those of the case")
    for host in plan.hosts:
        if "/" in host.name or "\0" in host.name:
            raise FormatError(f"{where}: the name of a host is {host.name!r:.40}; expected a name without / and NUL")
    for name, share in vars(plan.left_out).items() if plan.left_out is not None else ():
        if not share >= 0:
            raise FormatError(f"{where}: left_out.{name} is {share!r:.40}; expected a number from 0")
    try:
        plan.parallel  # noqa: B018 - the property checks the config
    except ParallelError as error:
        raise FormatError(f"{where}: parallel: {error!s:.200}") from error
