"""The kind ``serving``: the speed of a server of a language model, after its answers were judged."""

from __future__ import annotations

from pytest_flagperf.hooks import hookimpl

from .kind import ServingKind


@hookimpl
def flagperf_kinds() -> list[ServingKind]:
    return [ServingKind()]
