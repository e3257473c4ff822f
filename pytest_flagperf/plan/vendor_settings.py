"""What a vendor's folder can change beside its code: the table of vendor.toml's keys and of the folder's files.

Every key of vendor.toml is listed as ``setting KEY`` if its value is not the default. ``NOT_LISTED`` has the only
exceptions, each with its reason. ``IN_KEY`` has the keys that make figures incomparable; the others are only in the
record of the fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from flagperf_driver import addresses

from .. import redaction
from ..catalog import Vendor, key_lines

NAME = "NAME"
"""Stands for the name of a framework, chip or image in a key's path."""
SETTING = "setting "
"""The beginning of the name of an addition that is a key of vendor.toml."""
Path = tuple[str, ...]

NOT_LISTED: Mapping[str, str] = {
    "name": "for people",
    "runtime": "the default of an option: plan and fingerprint have the case's own runtime",
    "scale": "the default of an option: plan and fingerprint have the case's own scale",
    "shapes": "the default of an option: plan and fingerprint have the case's own shape",
    "environment": "listed as variables, without their values, which may be secret",
    "known_problem": "listed as known problems",
    "framework.NAME.modules": "listed as modules",
    "chips.NAME.pci": "the chip is in the case, and the kernel's ids are judged by it",
    "chips.NAME.devices_per_pci": "as pci",
    "chips.NAME.source": "a peak's origin: it changes no figure",
    "chips.NAME.memory_gib": "for documents, and to say which cases fit: it changes no training",
}
"""Keys that are not listed as settings, each with the reason."""
IN_KEY = ("visible_devices", "framework.NAME.device", "framework.NAME.backend", "container", "uv")
"""Keys whose values are in the fingerprint's key, with all keys below them. Of the others, a bound judges, a lease
reserves, and names, peaks and probes describe: they do not change the training. An image is in the machine's facts."""
FILES: Mapping[str, str] = {"probe.py": "reads the devices during the round"}
"""Files of the folder that no other addition lists, each with what they do; none brings code into the ranks."""


def settings(vendor: Vendor, framework: str, hardware: str) -> Iterator[tuple[str, str, str, int]]:
    """Yield name, value, default and line of each key of vendor.toml that concerns a case and is not the default."""
    lines = key_lines(vendor.path / "vendor.toml")
    chosen = {"framework": (framework,), "chips": (hardware,), "images": tuple(vendor.toml.images)}
    for path, pattern, value, default in _walk(vendor.toml, (), ()):
        table = chosen.get(path[0])
        if pattern not in NOT_LISTED and (table is None or path[1] in table):
            line = next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 0)
            yield f"{SETTING}{'.'.join(path)}", _text(path, value), _text(path, default), line


def in_key(name: str) -> bool:
    """Return True if an addition is a setting that is part of the fingerprint's key."""
    path = name.removeprefix(SETTING).split(".")
    pattern = ".".join([path[0], NAME, path[-1]] if path[0] == "framework" else path)
    return name.startswith(SETTING) and any(pattern == key or pattern.startswith(f"{key}.") for key in IN_KEY)


def _walk(record: Any, path: Path, pattern: Path) -> Iterator[tuple[Path, str, object, object]]:
    """Yield path, pattern, value and default of each key below a record whose value is not the default."""
    for field in fields(record):
        value, at, like = getattr(record, field.name), (*path, field.name), (*pattern, field.name)
        if is_dataclass(value):
            yield from _walk(value, at, like)
        elif isinstance(value, Mapping):
            for name, item in value.items():
                if is_dataclass(item):
                    yield from _walk(item, (*at, name), (*like, NAME))
                else:
                    yield (*at, name), ".".join(like), item, None
        elif value != (default := None if field.default is MISSING else field.default):
            yield at, ".".join(like), value, default


def _text(path: Path, value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        words = [str(word) for word in value]
        return redaction.container_options(" ".join(words)) if path[0] == "container" else ", ".join(words)
    return addresses.redacted_text(str(value).lower() if isinstance(value, bool) else str(value))
