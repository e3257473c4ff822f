"""What ``--plan`` prints: a plan for the eye, in at most some 120 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from flagperf_driver.launch import RankProcess

from ..catalog import REFERENCE, Vendor
from ..config import OUTCOMES
from ..runtime import RuntimeRequest, runtimes
from .model import Plan
from .placement import Place, Placement, expected_placement, rank_processes

_WIDEST_VALUE = 20
_WIDTH = 116
_CUT = "..."


def describe(
    plan: Plan,
    vendor: Vendor | None = None,
    lease: str = "device",
    request: RuntimeRequest | None = None,
    convergence: str = "",
    duration: Iterable[str] = (),
    hosts: Sequence[Place] = (),
) -> str:
    """The case, what it wants of a host, where it runs, every value with its origin, and the command of each rank."""
    wanted = _wanted(plan, vendor, lease) if vendor else ()
    kind = runtimes()[plan.runtime]
    image = kind.image(request) if request else ""
    only_leased = request is not None and not kind.sees_all_devices(request)
    placement = expected_placement(plan, hosts, only_leased=only_leased)
    times = [_fact("" if number else "duration", line) for number, line in enumerate(duration)]
    facts, config = (
        [*_facts(plan, image, convergence), *times],
        [*_config(plan), *_translated(plan)],
    )
    return "\n".join([str(plan.case), *facts, *wanted, *_hosts(placement), *config, *_commands(plan, placement)])


def _facts(plan: Plan, image: str, convergence: str) -> Iterator[str]:
    shape = plan.case.shape
    sign = ">=" if plan.metric.direction == "higher" else "<="
    yield _fact("labels", ", ".join(_labels(plan)))
    if convergence:
        yield _fact("converges", convergence)
    yield _fact("scale", f"{plan.scale}: {plan.metric.name} {sign} {plan.target:g} ({plan.metric.unit})")
    yield _fact("vendor", f"{plan.vendor}, hardware {plan.case.hardware}, {plan.device} with {plan.backend}")
    yield _fact("shape", f"{shape}: {_count(shape.nnodes, 'host')}, {_count(shape.cards, 'card')} in all")
    if shape.cards > 1:
        yield _fact("speed-up", f"{plan.scaling} scaling, at least {plan.min_efficiency:g} per card")
    yield _fact("runtime", f"{plan.runtime}, launched by {plan.launcher}")
    if image:
        yield _fact("image", image)
    yield from _brought(plan)
    yield _fact("data", _data(plan))
    for item in plan.manifest:
        counts = {"files": item.files, "folders": item.folders, "bytes": item.size}
        told = [f"{number} {what}" for what, number in counts.items() if number is not None]
        yield _fact("", "  " + ", ".join([f"{item.kind} {item.path}", *told]))
    yield _fact("MFU", _mfu(plan))


def _wanted(plan: Plan, vendor: Vendor, lease: str) -> Iterator[str]:
    """What must be there before the start, and who looks at the devices until the end."""
    asked = [*(["NVML"] if vendor.toml.nvml else []), *([f"vendors/{vendor.name}/probe.py"] if vendor.probe else [])]
    chip = vendor.chips.get(plan.case.hardware)
    names = f" ({' or '.join(chip.names)})" if chip and chip.names else ""
    called = f" called {plan.case.hardware}{names}" if asked else ""
    every = ", the whole host" if lease == "host" else f", {_count(plan.case.nproc, 'device')}{called} that nobody uses"
    needs = "".join(f", {need}" for need in [runtimes()[plan.runtime].needs] if need)
    yield _fact("each host", f"Python >= 3.8{needs}{every}{', the data' if plan.data_dir else ''}")
    yield _fact("monitors", f"the host{', its devices by ' if asked else ''}{', else by '.join(asked)}")


def _brought(plan: Plan) -> Iterator[str]:
    """What the vendor brings beside its config, before any of it runs."""
    lines = [f"{one.name}: {one.value}, {one.where} (without it: {one.reference})" for one in plan.brought]
    for number, line in enumerate(lines or ["nothing but its config"]):
        yield _fact("" if number else "brings", line)


def _labels(plan: Plan) -> list[str]:
    labels = ["throughput only"] if plan.throughput_only else [_goal(plan)]
    return [*labels, "synthetic data"] if plan.synthetic else labels


def _goal(plan: Plan) -> str:
    parity = plan.config["parity_samples"]
    if parity is None:
        return "converges to its target"
    return f"parity: {parity:,} samples, judged by the reference's loss curve, not by the target"


def _data(plan: Plan) -> str:
    if plan.synthetic:
        return "synthetic: made up, real shapes"
    if plan.data_dir:
        return f"{plan.data_dir} ({plan.values['data_dir'].where})"
    return "not given: --data-dir or --case CASE=DATA_DIR" if plan.scale == REFERENCE else "comes with the suite"


def _mfu(plan: Plan) -> str:
    flops, peak = plan.flops_per_sample, plan.peak_tflops
    if flops is None or peak is None:
        what = f"peak of {plan.case.hardware} at {plan.precision}" if peak is None else "FLOPs per sample"
        return f"none: no {what} is declared"
    return f"{flops:g} FLOPs per sample, {peak:g} TFLOP/s dense at {plan.precision}"


def _hosts(placement: Placement) -> Iterator[str]:
    yield _title("hosts")
    width = max(len(host.name) for host in placement.hosts)
    for noderank, host in enumerate(placement.hosts):
        devices = ",".join(map(str, host.devices))
        yield f"    {noderank}  {host.name:{width}}  {host.address}  devices {devices}"


def _config(plan: Plan) -> Iterator[str]:
    """One line a key; a star where the suite's own value for the scale is another, which is then named."""
    references = {deviation.key: deviation.reference for deviation in plan.deviations}
    yield _title(f"config ({len(plan.values)} values, * {len(references)} not the suite's own)")
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
    """What became of each name of a file with the original's names, grouped by what became of it."""
    for outcome in OUTCOMES if plan.translated else ():
        names = [one for one in plan.translated if one.outcome == outcome]
        yield _title(f"FlagPerf's names, {outcome} ({len(names)})")
        for one in names:
            yield from _wrapped(f"{one.key} = {one.value}, {one.where}: {one.effect}", "    ")


def _commands(plan: Plan, placement: Placement) -> Iterator[str]:
    """The commands of a real round, with a word in braces for what only its hosts know."""
    yield _title(f"commands ({{python}}: of the {plan.runtime} runtime, {{code}}: the staged code)")
    for host, processes in zip(placement.hosts, rank_processes(plan, placement), strict=True):
        yield f"    {host.name}"
        yield from _processes(processes)


def _processes(processes: Sequence[RankProcess]) -> Iterator[str]:
    """The environment that all processes of a host share once, then each with its own."""
    first = processes[0].env
    shared = {name for name in first if all(process.env.get(name) == first[name] for process in processes)}
    for name in sorted(shared):
        yield f"      {name}={first[name]}"
    for process in processes:
        own = " ".join(f"{name}={value}" for name, value in process.env.items() if name not in shared)
        yield f"      rank {process.rank}: {own + ' ' if own else ''}{' '.join(process.argv)}"


def _fact(name: str, text: str) -> str:
    return f"  {name:9} {text}".rstrip()


def _title(text: str) -> str:
    return f"  {text}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _WIDEST_VALUE else f"{text[: _WIDEST_VALUE - len(_CUT)]}{_CUT}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
