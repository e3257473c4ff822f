"""The kind ``serving``: the speed of a server of a language model, after its answers were judged."""

from __future__ import annotations

from pytest_flagperf.hooks import Exporter, hookimpl

from . import huggingface
from .kind import ServingKind


@hookimpl
def flagperf_kinds() -> list[ServingKind]:
    return [ServingKind()]


@hookimpl
def flagperf_exporters() -> list[Exporter]:
    return [Exporter(huggingface.FORMAT, huggingface.write)]
