"""A round's figures as JUnit properties."""

from __future__ import annotations

from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.units import quantity


def properties(outcome: Outcome) -> list[tuple[str, str]]:
    """Name and value; a name carries its round and unit, so that several rounds' differ."""
    place = f"round{outcome.round}"
    found = [
        (f"{place}.case", outcome.case),
        (f"{place}.state", outcome.state if outcome.ok or outcome.state != "finished" else "failed"),
        (f"{place}.seed", str(outcome.seed)),
        (f"{place}.scale", outcome.scale),
        (f"{place}.synthetic", str(outcome.synthetic).lower()),
    ]
    for metric in outcome.metrics:
        unit = f"[{metric.unit}]" if metric.unit else ""
        found.append((f"{place}.{metric.name}{unit}", repr(metric.value)))
    if outcome.target.value is not None:
        found.append((f"{place}.target", quantity(outcome.target.value, outcome.target.unit)))
    found += [(f"{place}.warning", warning) for warning in outcome.warnings]
    found += [(f"{place}.environment.{name}", value) for name, value in outcome.environment.items()]
    return [(name, _xml_safe(value)) for name, value in found]


def _xml_safe(text: str) -> str:
    """Without the characters that XML has no way to say."""
    return "".join(char if char.isprintable() else "?" for char in text)
