"""The text that ``--plan`` prints for a case, about 120 columns wide."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from flagperf_driver.rank_process import RankProcess

from ..catalog import Vendor
from ..config import OUTCOMES
from ..kind import kind_of
from ..runtime import RuntimeRequest, runtimes
from ..stored.plan import MeasuredFigure
from . import memory
from .make import Plan
from .ranks import NamedHost, Placement, expected_placement, rank_processes
from .vendor_settings import SETTING

_WIDEST_VALUE = 20
_WIDTH = 116
_CUT = "..."
_SHOWN_GROUPS = 7
"""The number of groups of ranks that are listed before ``...`` and the last group."""


def describe(
    plan: Plan,
    vendor: Vendor | None = None,
    lease: str = "device",
    request: RuntimeRequest | None = None,
    convergence: str = "",
    duration: Iterable[str] = (),
    hosts: Sequence[NamedHost] = (),
) -> str:
    """Describe a case: requirements, hosts, every config value with its origin, and the command of each rank."""
    requirements = _host_requirements(plan, vendor, lease) if vendor else ()
    runtime = runtimes()[plan.runtime]
    image = runtime.image(request) if request else ""
    only_leased = request is not None and not runtime.sees_all_devices(request)
    placement = expected_placement(plan, hosts, only_leased=only_leased)
    facts = [*_facts(plan, image, convergence), *_listed("duration", duration), *requirements]
    config = [*_config(plan), *_translated(plan)]
    return "\n".join([str(plan.case), *facts, *_hosts(placement), *config, *_commands(plan, placement)])


HEAD = ("case", "scale", "measures", "ranks", "runtime", "data", "a round takes")
"""The titles of the cells of an overview."""


def overview(plan: Plan, duration: str) -> tuple[str, ...]:
    """Return the cells of a case in a table of plans: what it measures, where, and with which data."""
    words = kind_of(plan).describe(plan)
    data = "synthetic" if plan.synthetic else plan.data_dir or words.without_data
    return str(plan.case), plan.scale, words.measures, str(plan.case.shape.cards), plan.runtime, data, duration


def all_additions(plans: Sequence[Plan]) -> str:
    """Return the names of the vendors' additions to the cases, with the number of cases that have one if not all do."""
    names = Counter(addition.name for plan in plans for addition in plan.additions)
    settings = [name for name in names if name.startswith(SETTING)]
    shown = [
        name if number == len(plans) else f"{name} ({number} of {len(plans)} cases)"
        for name, number in names.items()
        if name not in settings
    ]
    return ", ".join([*shown, *([_count(len(settings), "setting")] if settings else [])])


def too_large(plans: Iterable[Plan]) -> list[str]:
    """Return a sentence about each case that the memory of its devices will not hold."""
    return [
        f"{plan.case}: {memory.of_device(own, plan.case.hardware, plan.memory_gib)}; --plan -v lists what other shapes"
        " and checkpoint_activations need"
        for plan in plans
        if plan.estimates and (own := plan.estimates[0].estimate) is not None
        if plan.memory_gib is not None and own.fits(plan.memory_gib) == memory.NO
    ]


def _facts(plan: Plan, image: str, convergence: str) -> Iterator[str]:
    shape, words = plan.case.shape, kind_of(plan).describe(plan)
    yield _fact("labels", ", ".join(words.labels))
    if convergence:
        yield _fact("converges", convergence)
    yield _fact("scale", f"{plan.scale}: {_expected(plan)}" if plan.metric.value is not None else plan.scale)
    yield from _listed("figures", map(_figure, plan.figures))
    yield _fact("vendor", f"{plan.vendor}, hardware {plan.case.hardware}, {plan.device} with {plan.backend}")
    if plan.replaced_vendor:
        yield _fact("", f"its folder replaces the vendor {plan.vendor} of {plan.replaced_vendor}")
    yield _fact("shape", f"{shape}: {_count(shape.nnodes, 'host')}, {_count(shape.cards, 'card')} in total")
    yield from _listed("parallel", _shares(plan))
    if shape.cards > 1 and plan.scaling:
        yield _fact("speed-up", f"{plan.scaling} scaling, at least {plan.min_efficiency:g} per card")
    yield _fact("runtime", plan.runtime)
    if image:
        yield _fact("image", image)
    additions = (f"{one.name}: {one.value}, {one.where} (default: {one.reference})" for one in plan.additions)
    yield from _listed("additions", additions)
    yield _fact("data", _data(plan, words.without_data))
    for item in plan.manifest:
        counts = {"files": item.files, "folders": item.folders, "bytes": item.size}
        sizes = [f"{number} {unit}" for unit, number in counts.items() if number is not None]
        yield _fact("", "  " + ", ".join([f"{item.kind} {item.path}", *sizes]))
    for title, text in words.facts.items():
        yield _fact(title, text)
    yield from _listed("memory", memory.lines(plan.estimates, plan.case.hardware, plan.memory_gib))


def _shares(plan: Plan) -> Iterator[str]:
    """Say what each card holds of the model, and which samples it reads."""
    parallel, cards = plan.parallel, plan.case.shape.cards
    if cards == 1 or "parallel" not in plan.config:
        return
    copies = _count(parallel.replicate, "copy", "copies")
    holds = f"{copies} of the model, {_count(parallel.ranks // parallel.replicate, 'card')} each"
    yield f"{parallel.name}: {holds}; {_count(parallel.data_ranks, 'share')} of the samples"
    if not parallel.is_sharded:
        return
    last, parts = parallel.data_ranks - 1, parallel.without_experts.shard
    for group in (*range(min(_SHOWN_GROUPS, last)), last):
        if group == last > _SHOWN_GROUPS:
            yield f"  {_CUT}"
        first = group * parallel.tensor
        ranks = f"rank {first}" if parallel.tensor == 1 else f"ranks {first} to {first + parallel.tensor - 1}"
        held = [f"copy {group // parts + 1}"] if parallel.replicate > 1 else []
        held += [f"part {group % parts + 1} of {parts}"] if parts > 1 else []
        if parallel.expert > 1:
            held.append(f"part {group % parallel.expert + 1} of {parallel.expert} of the experts")
        hosts = (first + parallel.tensor - 1) // plan.case.nproc - first // plan.case.nproc + 1
        if parallel.tensor > 1:
            held.append("divided between these ranks" + (f" on {hosts} hosts" if hosts > 1 else ""))
        yield f"  {ranks}: {', '.join(held)}; samples {group + 1} of {parallel.data_ranks}"


def _expected(plan: Plan) -> str:
    metric = plan.metric
    unit = f" ({metric.unit})" if metric.unit else ""
    return ", ".join(f"{name} {metric.sign} {value:g}" for name, value in metric.values.items()) + unit


def _figure(figure: MeasuredFigure) -> str:
    """Return the name, the unit and the better direction of a figure, and what the vendor declares of it."""
    divisor, unit = (1e9, "GB/s") if figure.unit == "B/s" else (1e12, f"T{figure.unit}")
    peak = "no peak declared" if figure.peak is None else f"the chip's peak is {figure.peak / divisor:g} {unit}"
    promised = "" if figure.promised is None else f", of which the vendor promises {figure.promised:.0%}"
    optional = "" if figure.is_required else ", optional"
    return f"{figure.name} in {figure.unit}, {figure.direction} is better{optional}; {peak}{promised}"


def _host_requirements(plan: Plan, vendor: Vendor, lease: str) -> Iterator[str]:
    """Yield the requirements of each host, and the monitors that sample it during the round."""
    probes = [*(["NVML"] if vendor.toml.nvml else []), *([f"vendors/{vendor.name}/probe.py"] if vendor.probe else [])]
    names = f" ({' or '.join(plan.chip_names)})" if plan.chip_names else ""
    called = f" called {plan.case.hardware}{names}" if probes else ""
    devices = ", the whole host" if lease == "host" else f", {_count(plan.case.nproc, 'free device')}{called}"
    needs = "".join(f", {need}" for need in [runtimes()[plan.runtime].needs] if need)
    yield _fact("each host", f"Python >= 3.8{needs}{devices}{', the data' if plan.data_dir else ''}")
    yield _fact("monitors", f"the host{', its devices by ' if probes else ''}{', otherwise by '.join(probes)}")


def _data(plan: Plan, without: str) -> str:
    if plan.synthetic:
        return "synthetic: generated, with real shapes"
    if plan.data_dir:
        return f"{plan.data_dir} ({plan.values['data_dir'].where})"
    words = {"missing": "missing: pass --data-dir or --case CASE=DATA_DIR", "included": "included in the suite"}
    return words.get(without, without)


def _hosts(placement: Placement) -> Iterator[str]:
    yield "  hosts"
    width = max(len(host.name) for host in placement.hosts)
    for noderank, host in enumerate(placement.hosts):
        devices = ",".join(map(str, host.devices))
        yield f"    {noderank}  {host.name:{width}}  {host.address}  devices {devices}"


def _config(plan: Plan) -> Iterator[str]:
    """Yield a line per key; a star marks a value that differs from the suite's, which is also shown."""
    references = {deviation.key: deviation.reference for deviation in plan.deviations}
    yield f"  config ({len(plan.values)} values, * {len(references)} differ from the suite's)"
    rows = [
        ("*" if key in references else " ", key, _short(value.value), value.layer, value.where)
        for key, value in plan.values.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield f"  {' '.join(cells)} {row[4]}".rstrip()
        indent = " " * (widths[0] + widths[1] + 4)
        if row[1] in references:
            yield from _wrapped(f"the suite's: {references[row[1]]!r}", indent)
        if row[2].endswith(_CUT):
            yield from _wrapped(f"in full: {plan.config[row[1]]!r}", indent)


def _translated(plan: Plan) -> Iterator[str]:
    """List FlagPerf's names in the config file, grouped by their outcome."""
    for outcome in OUTCOMES if plan.translated else ():
        names = [item for item in plan.translated if item.outcome == outcome]
        yield f"  FlagPerf's names, {outcome} ({len(names)})"
        for item in names:
            yield from _wrapped(f"{item.key} = {item.value}, {item.where}: {item.effect}", "    ")


def _commands(plan: Plan, placement: Placement) -> Iterator[str]:
    """List the commands of a round, with placeholders in braces for values that only the hosts know."""
    yield f"  commands ({{python}}: Python of the {plan.runtime} runtime, {{code}}: the staged code)"
    for host, processes in zip(placement.hosts, rank_processes(plan, placement), strict=True):
        yield f"    {host.name}"
        yield from _processes(processes)


def _processes(processes: Sequence[RankProcess]) -> Iterator[str]:
    """List the environment that all processes of a host share, then each process with its own variables."""
    first = processes[0].env
    shared = {name for name in first if all(process.env.get(name) == first[name] for process in processes)}
    for name in sorted(shared):
        yield f"      {name}={first[name]}"
    for process in processes:
        own = " ".join(f"{name}={value}" for name, value in process.env.items() if name not in shared)
        yield f"      rank {process.rank}: {own + ' ' if own else ''}{' '.join(process.argv)}"


def _fact(name: str, text: str) -> str:
    return f"  {name:9} {text}".rstrip()


def _listed(name: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the facts of one name, which only the first line shows."""
    yield from (_fact("" if number else name, line) for number, line in enumerate(lines))


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun if number == 1 else nouns or f'{noun}s'}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _WIDEST_VALUE else f"{text[: _WIDEST_VALUE - len(_CUT)]}{_CUT}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
