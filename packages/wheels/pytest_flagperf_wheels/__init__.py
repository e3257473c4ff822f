"""The command ``flagperf wheels``: a folder of wheels for a machine without a package index."""

from __future__ import annotations

from pytest_flagperf.hooks import Command, hookimpl


@hookimpl
def flagperf_commands() -> list[Command]:
    from . import command  # its modules load slowly

    return [Command("wheels", command)]
