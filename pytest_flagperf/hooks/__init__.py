"""Hooks: an installed package adds roots, verdicts, sections of the page, exporters and engines (docs/extending.md).

>>> from pytest_flagperf import hooks
>>> @hooks.hookimpl
... def flagperf_roots() -> list[str]:
...     return ["/opt/lab/flagperf"]
"""

from __future__ import annotations

from .plugins import Answer, Plugin, call, guard, has, installed_plugins, named
from .specs import PROJECT, EngineFactory, Exporter, Html, Section, Table, hookimpl

__all__ = [
    "PROJECT",
    "Answer",
    "EngineFactory",
    "Exporter",
    "Html",
    "Plugin",
    "Section",
    "Table",
    "call",
    "guard",
    "has",
    "hookimpl",
    "installed_plugins",
    "named",
]
