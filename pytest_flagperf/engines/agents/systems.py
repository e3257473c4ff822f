"""The systems that rounds can be started from: Linux, and macOS for rounds on other hosts."""

from __future__ import annotations

import sys

from pytest_flagperf.problems import Problems

_NAMES = {"darwin": "macOS", "win32": "Windows"}


def check_system(*, only_other_hosts: bool) -> list[str]:
    """Return a warning if runs from this system are not tested; Problems if it cannot run rounds."""
    if sys.platform == "linux":
        return []
    name = _NAMES.get(sys.platform, sys.platform)
    here = "--plan and the commands show, compare and report work here (docs/systems.md)"
    if sys.platform == "win32":
        raise Problems([f"rounds cannot be started on {name}: start the run on Linux; {here}"])
    if not only_other_hosts:
        raise Problems([f"rounds cannot run on {name}: pass --cluster with hosts that run Linux; {here}"])
    return [f"warning: this machine runs {name}; runs from it on other hosts are not tested (docs/systems.md)"]
