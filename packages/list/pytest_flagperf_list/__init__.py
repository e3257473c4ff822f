"""The command ``flagperf list``: the suites and vendors, with their chips and configs."""

from __future__ import annotations

from pytest_flagperf.hooks import Command, hookimpl


@hookimpl
def flagperf_commands() -> list[Command]:
    from . import command  # its modules load slowly

    return [Command("list", command)]
