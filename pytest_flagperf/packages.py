"""The parts of pytest-flagperf that are packages of their own, which a user installs beside it."""

from __future__ import annotations

_ADVICE = {
    "modelarts": (
        "pip install pytest-flagperf-modelarts; it has --engine=modelarts, the table [engines.modelarts] and the"
        " command flagperf-modelarts"
    ),
    "mlperf": "pip install pytest-flagperf-mlperf; it has flagperf export --format=mlperf",
}


def advice(part: str) -> str | None:
    """Return what to install for a part that is a package of its own; None for any other name."""
    return _ADVICE.get(part)
