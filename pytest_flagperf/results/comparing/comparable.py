"""Compare the fingerprints and machines of two rounds, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_flagperf.results.measured import machine
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored.plan import package_of

_KEYS = ("key", "one_card_key")
_DEVIATIONS = "deviations"
_PARTS = {
    "module": "vendor_settings", "setting": "vendor_settings",
    "step": "vendor_code", "hook": "vendor_code", "extension": "vendor_code",
    "variable": "environment", "command": "environment", "package": "requirements",
}  # fmt: skip
_NOTED = ("device", "framework")
CODE = ("suite_code", "vendor_code", "driver_code")
"""Fields of the fingerprint that may differ, because comparisons test the code."""


def fingerprint_differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Return the fields in which two fingerprints differ; a field that only one of them has does not count."""
    if not old or not new:
        return [] if old == new else [f"fingerprint: {'known' if old else 'none'} -> {'known' if new else 'none'}"]
    if old.get("key") == new.get("key"):
        return []
    both = [name for name in old if name in new and name not in (*_KEYS, _DEVIATIONS)]
    changed = [_difference(name, old, new) for name in both if old[name] != new[name]]
    same_fields = old.keys() - {_DEVIATIONS} == new.keys() - {_DEVIATIONS}
    return changed or ([f"key: {_text(old.get('key'))} -> {_text(new.get('key'))}"] if same_fields else [])


def outcome_differences(first: Outcome, second: Outcome) -> list[str]:
    """Return the differences between two rounds in case, fingerprint and machine."""
    texts = fingerprint_differences(first.fingerprint, second.fingerprint)
    for name in ("vendor", "hardware", "scale", "synthetic", "throughput_only"):
        then, now = getattr(first, name), getattr(second, name)
        if then != now and not any(text.startswith(f"{name}:") for text in texts):
            texts.append(f"{name}: {_text(then)} -> {_text(now)}")
    return [*texts, *machine.differences(first.machine, second.machine), *_other_versions(first, second)]


def is_code(difference: str) -> bool:
    """Return True for a difference in the code, which is reported and compared."""
    return difference.partition(":")[0] in CODE


def config_differences(first: Outcome, second: Outcome) -> list[str]:
    """Return the differences that make two rounds not comparable, of the same or of another version of the code."""
    return [text for text in outcome_differences(first, second) if not is_code(text)]


def notes(first: Outcome, second: Outcome) -> list[str]:
    """Return differences between two rounds that do not prevent a comparison."""
    texts = [text for text in fingerprint_differences(first.fingerprint, second.fingerprint) if is_code(text)]
    for name in _NOTED:
        then, now = first.environment.get(name), second.environment.get(name)
        if then != now and None not in (then, now):
            texts.append(f"{name}: {then} -> {now}")
    old, new = first.fingerprint, second.fingerprint
    for name, text in _deviating(old, new):
        part = _part(name)
        if not package_of(name) and not (part in old and part in new and old[part] != new[part]):
            texts.append(text)
    return [*texts, *machine.notes(first.machine, second.machine)]


def _other_versions(first: Outcome, second: Outcome) -> Iterator[str]:
    """Yield the packages of other versions than required in one round, but those whose versions both ranks report."""
    for name, text in _deviating(first.fingerprint, second.fingerprint):
        package = package_of(name)
        if package and not (package in first.machine and package in second.machine):
            yield text


def _difference(name: str, old: Mapping[str, object], new: Mapping[str, object]) -> str:
    """Describe a changed field; a changed hash by the deviations that changed it, if they are known."""
    deviations = ", ".join(text for key, text in _deviating(old, new) if _part(key) == name)
    return f"{name}: {deviations or f'{_text(old[name])} -> {_text(new[name])}'}"


def _deviating(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the deviations from the suite that are not the same in both fingerprints, by name."""
    then, now = old.get(_DEVIATIONS), new.get(_DEVIATIONS)
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*then, *now]):
            if then.get(name) != now.get(name):
                yield name, f"{name} {_value(name, then, now)} -> {_value(name, now, then)}"


def _part(name: str) -> str:
    """The hash that contains a deviation: a key of the config, or a kind and a name such as "step backward"."""
    kind, space, _ = name.partition(" ")
    return _PARTS.get(kind, "") if space else "config"


def _value(name: str, own: Mapping[str, object], other: Mapping[str, object]) -> str:
    """The value on one side: its deviation, or else the suite's value, which the other side's deviation contains."""
    deviation, others = own.get(name), other.get(name)
    if isinstance(deviation, list | tuple):
        return _text(deviation[0])
    return _text(others[1]) if isinstance(others, list | tuple) else "?"


def _text(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
