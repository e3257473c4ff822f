"""The command ``flagperf compare``: two runs, with the noise that their changes are judged by."""

from __future__ import annotations

from pytest_flagperf.hooks import Command, hookimpl


@hookimpl
def flagperf_commands() -> list[Command]:
    from . import command  # its modules load slowly

    return [Command("compare", command)]
