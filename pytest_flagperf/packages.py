"""The parts of pytest-flagperf that are packages of their own, and the packages that only one part needs."""

from __future__ import annotations

from .problems import Problems

LATE = {
    "docker": "--runtime=docker needs",
    "fabric": "--cluster needs",
    "pandas": "tables need",
    "pyarrow": "tables need",
    "rich": "flagperf watch needs",
    "uv": "--runtime=venv needs",
}
"""The packages that only one part imports; a run on this machine with --runtime=host needs none of them."""

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


class PackageMissing(Problems):
    """A package of ``LATE`` is not installed; the message has the command that installs it."""


def need(*packages: str) -> None:
    """Raise PackageMissing unless the packages, which are in ``LATE``, can be imported."""
    from importlib.util import find_spec

    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        names, words = " and ".join(missing), " ".join(missing)
        raise PackageMissing([f"{LATE[missing[0]]} {names}, which {verb} not installed: pip install {words}"])
