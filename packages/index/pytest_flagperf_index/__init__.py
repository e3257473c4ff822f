"""The command ``flagperf report``: the page of a run again, and the index page of a folder of runs."""

from __future__ import annotations

from pytest_flagperf.hooks import Command, hookimpl


@hookimpl
def flagperf_commands() -> list[Command]:
    from . import command  # its modules load slowly

    return [Command("report", command)]
