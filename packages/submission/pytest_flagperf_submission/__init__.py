"""The commands ``flagperf verify`` and ``flagperf bundle``: figures derived again, and the archive of a submission."""

from __future__ import annotations

from pytest_flagperf.hooks import Command, hookimpl


@hookimpl
def flagperf_commands() -> list[Command]:
    from . import bundle, verify  # their modules load slowly

    return [Command("bundle", bundle), Command("verify", verify)]
