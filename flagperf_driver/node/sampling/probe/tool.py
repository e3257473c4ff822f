"""A vendor's probe.py, loaded and used in this process: only the confined process of server.py does that."""

from __future__ import annotations

import os
from typing import Any, Callable

from flagperf_driver.node import run_tool

EVERY_S = 5.0
DEADLINE_S = 10.0


class ProbeError(RuntimeError):
    """The probe is invalid or gave no readings; the text is the reason."""


class Tool:
    """The command, how to parse its output, and the intervals."""

    def __init__(self, path: str) -> None:
        module = _load(path)
        path = short_path(path)
        self.command = _command(path, module)
        self.parse: Callable[[str], Any] = getattr(module, "parse", None)  # type: ignore[assignment]
        if not callable(self.parse):
            raise ProbeError(f"{path} has no parse(text)")
        self.every_s = _seconds(path, module, "EVERY_S", EVERY_S)
        self.deadline_s = _seconds(path, module, "DEADLINE_S", DEADLINE_S)
        self.environment = _environment(path, module)

    def read(self) -> Any:
        """Run the command and return the parsed output; raise CommandError or ProbeError on failure."""
        text = run_tool.run(self.command, self.deadline_s, self.environment)
        try:
            return self.parse(text)
        except Exception as error:
            raise ProbeError(f"parse() of the output of {self.command[0]}: {type(error).__name__}: {error}") from None


def short_path(path: str) -> str:
    """Return ``vendors/<vendor>/probe.py``, the path that the author of the probe knows."""
    return "/".join(path.split("/")[-3:])


def _load(path: str) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("flagperf_probe", path)
    if spec is None or spec.loader is None:
        raise ProbeError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProbeError(f"{short_path(path)} cannot be loaded: {type(error).__name__}: {error}") from None
    return module


def _command(path: str, module: Any) -> list[str]:
    words = getattr(module, "COMMAND", None)
    if not isinstance(words, (list, tuple)) or not words or not all(isinstance(word, str) for word in words):
        raise ProbeError(f"{path}: COMMAND must be a list of strings, for example ['tool', '-q']; got {words!r}")
    return list(words)


def _seconds(path: str, module: Any, name: str, default: float) -> float:
    value = getattr(module, name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ProbeError(f"{path}: {name} must be a positive number of seconds; got {value!r}")
    return float(value)


def _environment(path: str, module: Any) -> dict[str, str]:
    values = getattr(module, "ENVIRONMENT", {})
    if not isinstance(values, dict) or not all(isinstance(text, str) for pair in values.items() for text in pair):
        raise ProbeError(
            f"{path}: ENVIRONMENT must map strings to strings, for example {{'PATH': '/opt/x'}}; got {values!r}"
        )
    return {name: os.path.expandvars(text) for name, text in values.items()}
