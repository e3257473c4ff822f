"""Whether the figures of two rounds may be compared: what they are of and what they ran on, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_flagperf.results.measured import machine
from pytest_flagperf.results.measured.outcome import Outcome

_KEYS = ("key", "one_card_key")
_DEVIATIONS = "deviations"
_PARTS = {
    "step": "vendor_code", "hook": "vendor_code", "extension": "vendor_code",
    "variable": "environment", "script": "environment", "package": "requirements",
}  # fmt: skip
_TOLD = ("device", "framework")


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Of fingerprints, field by field; what only one of them tells is not known of the other, and no difference."""
    if not old or not new:
        return [] if old == new else [f"fingerprint: {'known' if old else 'none'} -> {'known' if new else 'none'}"]
    if old.get("key") == new.get("key"):
        return []
    both = [name for name in old if name in new and name not in (*_KEYS, _DEVIATIONS)]
    found = [_difference(name, old, new) for name in both if old[name] != new[name]]
    same_fields = old.keys() - {_DEVIATIONS} == new.keys() - {_DEVIATIONS}
    return found or ([f"key: {_said(old.get('key'))} -> {_said(new.get('key'))}"] if same_fields else [])


def unlike(first: Outcome, second: Outcome) -> list[str]:
    """What makes two rounds' figures unlike: their fingerprints, what these do not hold, and their machines."""
    found = differences(first.fingerprint, second.fingerprint)
    for name in ("vendor", "hardware", "scale", "synthetic", "throughput_only"):
        then, now = getattr(first, name), getattr(second, name)
        if then != now and not any(text.startswith(f"{name}:") for text in found):
            found.append(f"{name}: {_said(then)} -> {_said(now)}")
    return [*found, *machine.differences(first.machine, second.machine)]


def notes(first: Outcome, second: Outcome) -> list[str]:
    """What is to be known beside the figures of two rounds, though it does not make them unlike."""
    found = []
    for name in _TOLD:
        then, now = first.environment.get(name), second.environment.get(name)
        if then != now and None not in (then, now):
            found.append(f"{name}: {then} -> {now}")
    for name, said in _deviating(first.fingerprint, second.fingerprint):
        if not _differ(_part(name), first.fingerprint, second.fingerprint):
            found.append(said)
    return [*found, *machine.notes(first.machine, second.machine)]


def _difference(name: str, old: Mapping[str, object], new: Mapping[str, object]) -> str:
    """Of hashes what one of them has of its own, where that is why."""
    named = ", ".join(said for key, said in _deviating(old, new) if _part(key) == name)
    return f"{name}: {named or f'{_said(old[name])} -> {_said(new[name])}'}"


def _deviating(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """What only one has otherwise than its suite, or each otherwise, by name."""
    then, now = old.get(_DEVIATIONS), new.get(_DEVIATIONS)
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*then, *now]):
            if then.get(name) != now.get(name):
                yield name, f"{name} {_value(name, then, now)} -> {_value(name, now, then)}"


def _part(name: str) -> str | None:
    """The hash that a deviation is in: a key of the config, or a kind and a name, as "step backward"."""
    kind, space, _ = name.partition(" ")
    return _PARTS.get(kind) if space else "config"


def _differ(part: str | None, old: Mapping[str, object], new: Mapping[str, object]) -> bool:
    return part is not None and part in old and part in new and old[part] != new[part]


def _value(name: str, own: Mapping[str, object], other: Mapping[str, object]) -> str:
    """A deviation is its value and the suite's own, which is what the other side has without it."""
    mine, others = own.get(name), other.get(name)
    if isinstance(mine, list | tuple):
        return _said(mine[0])
    return _said(others[1]) if isinstance(others, list | tuple) else "?"


def _said(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
