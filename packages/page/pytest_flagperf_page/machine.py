"""The top of the page: the machine of the run, and the commands that repeat the run or one of its cases."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape

from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored.plan import EACH, StoredPlan, package_of

from .html import Markup, Name, table

Facts = Mapping[str, str]
_OTHER_VERSIONS = "Other versions"
_SEPARATOR = "; "
_IN_LINE = ("Chip", "CPU", "Host memory", "Framework")


def facts(outcome: Outcome) -> dict[str, str]:
    """Return what the machine of a round was, by the names of the block; unknown facts are left out."""
    texts = {name: of(outcome.machine, outcome.environment) for name, of in _FACTS.items()}
    if texts["Chip"].casefold() in (outcome.vendor.casefold(), outcome.hardware.casefold()):
        del texts["Chip"]
    texts[_OTHER_VERSIONS] = _SEPARATOR.join(_other_versions(outcome.fingerprint))
    return {name: text for name, text in texts.items() if text}


def named(vendor: str, hardware: str) -> str:
    """Return the name of a kind of hardware: the processor's vendor, cpu, adds nothing to its hardware, CPU."""
    return hardware if vendor.casefold() == hardware.casefold() else f"{vendor} {hardware}"


def line(machines: Mapping[str, Iterable[tuple[int, int]]], facts_of: Mapping[str, Sequence[Facts]]) -> str:
    """Return the machine in one line; of several kinds of hardware, their names."""
    texts = []
    for name, shapes in machines.items():
        parts = [name, _used(shapes)]
        if len(machines) == 1:
            parts += [_SEPARATOR.join(_each_once(facts_of[name], fact)) for fact in _IN_LINE]
        texts.append(", ".join(filter(None, parts)))
    return _SEPARATOR.join(texts)


def block(machines: Mapping[str, Iterable[tuple[int, int]]], facts_of: Mapping[str, Sequence[Facts]]) -> str:
    """Return a table with a column for each kind of hardware: its shapes, and the facts of its cases.

    On a phone the cells are below each other, and page.css shows the hardware of each.
    """
    rows = [(Name("Used"), *_values({name: _used(shapes) for name, shapes in machines.items()}))]
    for name in (*_FACTS, _OTHER_VERSIONS):
        values = [_SEPARATOR.join(_each_once(facts_of[key], name)) for key in machines]
        if any(values):
            rows.append((Name(name), *_values(dict(zip(machines, values, strict=True)))))
    return f'<div id="machine">{table(("hardware", *machines), rows)}</div>'


def _each_once(facts: Iterable[Facts], name: str) -> Iterable[str]:
    return dict.fromkeys(text for one in facts if name in one for text in one[name].split(_SEPARATOR))


def _other_versions(fingerprint: Mapping[str, object]) -> Iterator[str]:
    """Yield each package that was installed in another version than the suite requires."""
    deviations = fingerprint.get("deviations")
    for name, pair in deviations.items() if isinstance(deviations, Mapping) else ():
        package = package_of(str(name))
        if package and isinstance(pair, list | tuple) and len(pair) == 2:
            yield f"{package} {pair[0]} (required: {pair[1]})"


def _values(texts: Mapping[str, str]) -> list[str]:
    return [
        Markup(f'<span data-of="{escape(name)}">{escape(text or "unknown")}</span>') for name, text in texts.items()
    ]


def command(words: Sequence[str], note: str = "") -> str:
    """Return a command with a button that copies it."""
    text = escape(shlex.join(words))
    more = f" <small>{escape(note)}</small>" if note else ""
    return Markup(
        f'<span class="command"><code>{text}</code><button class="plain" data-copy>copy</button></span>{more}'
    )


def of_case(outcome: Outcome, plan: StoredPlan | None) -> list[str]:
    """Return the words of the command that runs one case again."""
    values = plan.values if plan is not None else {}
    data = f"={values['data_dir'].value}" if "data_dir" in values and values["data_dir"].value else ""
    words = ["pytest", "suites", f"--vendor={outcome.vendor}", f"--case={outcome.case}{data}"]
    words += [f"--scale={outcome.scale}"] if outcome.scale else []
    words += ["--synthetic"] if outcome.synthetic else []
    words += ["--throughput-only"] if outcome.throughput_only else []
    # The name of the case has the values of its variant.
    settings = [name for name, item in values.items() if item.layer == "setting" and not item.where.startswith(EACH)]
    return words + [f"--set={name}={values[name].value}" for name in settings]


def _used(shapes: Iterable[tuple[int, int]]) -> str:
    nodes, cards = max(shapes, key=lambda shape: (shape[0] * shape[1], shape))
    return f"up to {count(nodes, 'host')} x {count(cards, 'device')}"


# -- facts -----------------------------------------------------------------------------------------------------


def _chip(machine: Mapping[str, object], environment: Mapping[str, str]) -> str:
    name = str(machine.get("chip") or environment.get("device", ""))
    return _joined(name, machine.get("chip_memory"), _prefixed("firmware ", machine.get("firmware")))


def _cpu(machine: Mapping[str, object], _: Mapping[str, str]) -> str:
    sockets = _prefixed("sockets: ", machine.get("sockets"))
    return _joined(machine.get("cpu"), sockets, _prefixed("cores: ", machine.get("cores")))


def _environment(machine: Mapping[str, object], environment: Mapping[str, str]) -> str:
    where = machine.get("image") or machine.get("environment") or environment.get("runtime")
    return _joined(where, _prefixed("Python ", machine.get("python")))


def _fact(*names: str) -> Callable[[Mapping[str, object], Mapping[str, str]], str]:
    return lambda machine, _: _joined(*(machine.get(name) for name in names))


_FACTS: Mapping[str, Callable[[Mapping[str, object], Mapping[str, str]], str]] = {
    "Chip": _chip,
    "Driver": _fact("driver"),
    "Power limit": _fact("power_limit"),
    "Links": _fact("interconnect", "network", "rdma"),
    "CPU": _cpu,
    "Host memory": _fact("memory"),
    "System": lambda machine, _: _joined(machine.get("os"), _prefixed("kernel ", machine.get("kernel"))),
    "Framework": lambda _, environment: environment.get("framework", ""),
    "Image or environment": _environment,
    "Commit": _fact("commit"),
}


def _joined(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part not in (None, ""))


def _prefixed(prefix: str, value: object) -> str:
    return f"{prefix}{value}" if value else ""
