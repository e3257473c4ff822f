"""Hooks: an installed package adds roots, kinds, verdicts, exporters, pages, engines and commands (docs/extending.md).

>>> from pytest_flagperf import hooks
>>> @hooks.hookimpl
... def flagperf_roots() -> list[str]:
...     return ["/opt/lab/flagperf"]
"""

from __future__ import annotations

from .plugins import Plugin, installed_plugins
from .specs import Command, EngineFactory, Exporter, Page, hookimpl

__all__ = [
    "Command",
    "EngineFactory",
    "Exporter",
    "Page",
    "Plugin",
    "hookimpl",
    "installed_plugins",
]
