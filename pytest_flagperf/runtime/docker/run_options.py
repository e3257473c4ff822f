"""Options of the docker command line, as vendors publish them, as arguments of docker-py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flagperf import docker_words
from pytest_flagperf.problems import Problems, near

SHM_SIZE = "32g"
"""The default, as in FlagPerf. Docker's 64 MB are too small for data loaders, and the size is not reserved."""

_SIZE = re.compile(r"(\d+)([bkmgt]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MODES = {"": False, "rw": False, "ro": True}
_CDI = re.compile(r"[\w.-]+/[\w.-]+=[\w.:{}-]+")  # for example maker.example/gpu=0
_DEVICE = "{device}"
_FILLED_IN = re.compile(r"\{\w*\}|\{device|device\}")


class OptionsError(Problems):
    """Invalid or unsupported options of a container."""


@dataclass(frozen=True)
class Options:
    """The parsed options."""

    arguments: Mapping[str, Any]  # of docker-py's containers.create
    gpus: bool = False  # Docker provides the leased devices
    by_device: bool = False  # each leased device is given by its device file
    notes: tuple[str, ...] = ()  # notes on options without effect

    @property
    def privileged(self) -> bool:
        return bool(self.arguments.get("privileged"))

    @property
    def only_leased(self) -> bool:
        """Whether the container sees only its leased devices; a privileged container sees all devices."""
        return (self.gpus or self.by_device) and not self.privileged

    @property
    def host_namespaces(self) -> tuple[str, ...]:
        """The namespaces that the container shares with the host, besides the network, which is always shared."""
        modes = {"ipc": "ipc_mode", "pid": "pid_mode", "uts": "uts_mode"}
        return tuple(name for name, key in modes.items() if self.arguments.get(key) == "host")


def parse(words: Sequence[str], source: str, devices: Sequence[int] = ()) -> Options:
    """Parse the options; OptionsError with all problems. ``source`` is where the options were given.

    An option with ``{device}`` is used once for each of the ``devices``, and also checked without devices.
    """
    arguments: dict[str, Any] = {}
    by_device = False
    notes: list[str] = []
    problems: list[str] = []
    for name, value in _pairs(words, problems):
        try:
            for filled in _filled_in(name, value, devices):
                _add(arguments, name, filled)
        except ValueError as error:
            problems.append(f"{name} {docker_words.value_shown(name, value)}: {error}")
        by_device |= name == "--device" and _DEVICE in value
        if name == "--workdir":
            notes.append(f"{source}: --workdir {value} has no effect: ranks run in their log folder")
    if problems:
        raise OptionsError([f"{source}: {problem}" for problem in problems])
    gpus = arguments.pop("device_requests", None) is not None
    arguments.pop("working_dir", None)
    return Options(arguments, gpus, by_device, tuple(notes))


def _filled_in(name: str, value: str, devices: Sequence[int]) -> Sequence[str]:
    """Return the values of the option with ``{device}`` replaced by each device."""
    others = sorted(set(_FILLED_IN.findall(value)) - {_DEVICE})
    if others:
        public = " and ".join(others) if docker_words.value_shown(name, value) == value else "word in braces"
        raise ValueError(f"unknown {public}; allowed is {_DEVICE}, the number of a leased device")
    if _DEVICE not in value:
        return [value]
    tried: dict[str, Any] = {}
    for number in range(2):
        _add(tried, name, value.replace(_DEVICE, str(number)))
    if sum(len(entries) for entries in tried.values() if isinstance(entries, (list, dict))) < 2:
        raise ValueError(
            f"the same value for all devices; {_DEVICE} is allowed in options that are given once for each device"
        )
    return [value.replace(_DEVICE, str(device)) for device in devices]


def _add(arguments: dict[str, Any], name: str, value: str) -> None:
    """Add an option to the arguments of docker-py; ValueError if its value is invalid."""
    key = docker_words.ARGUMENTS[name]
    if name in docker_words.FLAGS:
        if value not in ("true", "false"):
            raise ValueError("expected true or false")
        arguments[key] = value == "true"
    elif name in _NAMED:
        entry, separated, rest = value.partition(_NAMED[name][0])
        if not entry or not separated:
            raise ValueError(f"expected {_NAMED[name][1]}")
        arguments.setdefault(key, {})[entry] = rest
    elif name == "--tmpfs":
        path, _, options = value.partition(":")
        arguments.setdefault(key, {})[_absolute(path)] = options
    elif name in _EACH:
        arguments.setdefault(key, []).append(_EACH[name](value))
    else:
        arguments[key] = _ONE.get(name, _text)(value)


def size(text: str) -> int:
    """Return a size such as ``32g`` in bytes."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError("expected a size such as 512m or 32g")
    return int(match[1]) * _UNITS[match[2].lower()]


# -- parsing ----------------------------------------------------------------------------------------------


def _pairs(words: Sequence[str], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each known option by its long name with its value; flags have the value ``true``."""
    for name, value in docker_words.options(words):
        if name not in docker_words.ARGUMENTS:
            problems.append(_unknown(name))
        elif value is None:
            problems.append(f"{name}: the value is missing")
        else:
            yield name, value


def _unknown(name: str) -> str:
    """Return a problem without the word itself, which may be part of a password with a space."""
    if not name:
        return "found a word without an option; expected options only, and quotes around a value with a space"
    allowed = f"; allowed are {', '.join(docker_words.ARGUMENTS)}"
    return f"unsupported docker option {docker_words.name_shown(name)}{near(name, docker_words.ARGUMENTS) or allowed}"


# -- values -----------------------------------------------------------------------------------------------


def _text(value: str) -> str:
    if not value:
        raise ValueError("the value is empty")
    return value


def _gpus(value: str) -> str:
    if value != "all":
        part = "; a part of a device (MIG) cannot be leased" if "mig" in value.lower() else ""
        raise ValueError(f"expected all, the devices that the case has leased{part}")
    return value


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{path!r}: expected an absolute path")
    return path


def _device(value: str) -> str:
    if _CDI.fullmatch(value):
        raise ValueError(
            "a CDI name selects fixed devices, but a case uses those that it leased; use --gpus all, or "
            "--device with the path of the device files, where {device} is the device's number"
        )
    return _absolute(value)


def _volume(value: str) -> dict[str, Any]:
    """Parse SOURCE:TARGET[:ro|rw] as a mount, not a bind: Docker would create the missing folder of a bind."""
    source, _, rest = value.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target:
        raise ValueError("expected SOURCE:TARGET[:ro]")
    if mode not in _MODES:
        raise ValueError(f"mode {mode!r}; allowed are ro and rw")
    return _mount(source, target, read_only=_MODES[mode])


def _mount(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    kind = "bind" if source.startswith("/") else "volume"
    return {"Type": kind, "Source": source, "Target": _absolute(target), "ReadOnly": read_only}


_MOUNT_KEYS = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}


def _long_mount(value: str) -> dict[str, Any]:
    """Parse a mount such as type=bind,source=/a,target=/b,readonly."""
    pairs = [part.partition("=") for part in value.split(",")]
    given = {_MOUNT_KEYS.get(key, key): text or "true" for key, _, text in pairs}
    unknown = sorted(given.keys() - {"type", "source", "target", "readonly"})
    if unknown or given.get("type", "volume") not in ("bind", "volume") or not {"source", "target"} <= given.keys():
        raise ValueError("expected type=bind|volume,source=...,target=...[,readonly]")
    return _mount(given["source"], given["target"], read_only=given.get("readonly") in ("true", "1"))


def _ulimit(value: str) -> dict[str, Any]:
    match = re.fullmatch(r"([a-z]+)=(-?\d+)(?::(-?\d+))?", value)
    if not match:
        raise ValueError("expected NAME=SOFT[:HARD] such as memlock=-1")
    return {"Name": match[1], "Soft": int(match[2]), "Hard": int(match[3] or match[2])}


def _security(value: str) -> str:
    if value.startswith("seccomp=") and value not in ("seccomp=unconfined", "seccomp=builtin"):
        raise ValueError("profile files are not supported; allowed are seccomp=unconfined and seccomp=builtin")
    return value


def _nano_cpus(value: str) -> int:
    if not re.fullmatch(r"\d+(\.\d+)?", value) or not float(value):
        raise ValueError("expected a number of cores such as 1.5")
    return round(float(value) * 1e9)


def _whole(value: str) -> int:
    if not re.fullmatch(r"-?\d+", value):
        raise ValueError("expected a whole number")
    return int(value)


_NAMED = {"--env": ("=", "NAME=VALUE"), "--add-host": (":", "NAME:ADDRESS")}
"""The options with named values: what ends the name, and the form."""
_EACH: Mapping[str, Callable[[str], Any]] = {
    "--device": _device, "--volume": _volume, "--mount": _long_mount, "--cap-add": str, "--cap-drop": str,
    "--group-add": str, "--security-opt": _security, "--ulimit": _ulimit,
}  # fmt: skip
"""The options of which each value counts."""
_ONE: Mapping[str, Callable[[str], Any]] = {
    "--gpus": _gpus, "--shm-size": size, "--memory": size, "--cpus": _nano_cpus,
    "--memory-swap": lambda value: -1 if value == "-1" else size(value),
    "--pids-limit": _whole, "--entrypoint": lambda value: [value],  # an empty one removes the image's entrypoint
    "--workdir": str,
}  # fmt: skip
"""The options of which the last value counts, and that are not any text."""
