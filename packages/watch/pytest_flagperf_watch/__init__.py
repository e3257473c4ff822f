"""The command ``flagperf watch``: a run on a terminal while it runs."""

from __future__ import annotations

from pytest_flagperf.hooks import Command, hookimpl


@hookimpl
def flagperf_commands() -> list[Command]:
    from . import command  # its modules load slowly

    return [Command("watch", command)]
