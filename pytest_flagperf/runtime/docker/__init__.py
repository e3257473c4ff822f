"""Ranks in containers of the Docker engine on each host: images, containers, their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flagperf.hosts import Host
    from pytest_flagperf.hosts.deploy import Code
    from pytest_flagperf.runtime import Interpreter, Progress, Wanted


def prepare(host: Host, wanted: Wanted, progress: Progress, code: Code) -> Interpreter:
    """The image of the case on a host, pulled or built, with its Python."""
    from . import containers

    return containers.prepare(host, wanted, progress, code)
