"""The command ``flagperf export``: tables of runs in files, and the formats of installed packages."""

from __future__ import annotations

from pytest_flagperf.hooks import Command, hookimpl


@hookimpl
def flagperf_commands() -> list[Command]:
    from . import command  # its modules load slowly

    return [Command("export", command)]
