"""The parts of pytest-flagperf that are packages of their own, which a user installs beside it."""

from __future__ import annotations

_PACKAGES = {"modelarts": "pytest-flagperf-modelarts"}


def advice(part: str) -> str | None:
    """Return what to install for a part that is a package of its own; None for any other name."""
    package = _PACKAGES.get(part)
    if package is None:
        return None
    return f"pip install {package}; it has --engine={part}, the table [engines.{part}] and the command flagperf-{part}"
