"""The commands ``flagperf new-model`` and ``flagperf new-vendor``: the folder of a new model or vendor."""

from __future__ import annotations

from pytest_flagperf.hooks import Command, hookimpl


@hookimpl
def flagperf_commands() -> list[Command]:
    from . import new_model, new_vendor  # their modules load slowly

    return [Command("new-model", new_model), Command("new-vendor", new_vendor)]
