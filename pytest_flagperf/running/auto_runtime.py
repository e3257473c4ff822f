"""The choice between the runtimes venv and host on this machine, which may have no package index."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import replace

from pytest_flagperf.catalog import Catalog
from pytest_flagperf.engines import Engine, is_local
from pytest_flagperf.engines.agents.environments import runtime_request
from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.problems import Problems
from pytest_flagperf.runtime import RuntimeRequest
from pytest_flagperf.runtime.venv import RUNTIME as VENV
from pytest_flagperf.selection import Selected
from pytest_flagperf.settings import COMMAND_LINE, Settings

AUTO = "auto"


def with_chosen(settings: Settings, runtimes: Collection[str]) -> Settings:
    """Return the settings with the runtime that was chosen for all cases, for a run that continues this one."""
    if len(runtimes) != 1:
        return settings
    (chosen,) = runtimes
    return replace(settings, runtime=chosen, sources={**settings.sources, "runtime": COMMAND_LINE})


class AutoRuntime:
    """Chooses the runtime of each case, once for all cases of an environment."""

    def __init__(self, settings: Settings, catalog: Catalog, engine: Engine) -> None:
        self._settings, self._catalog, self._engine = settings, catalog, engine
        self._requests: dict[tuple[str, str, str], RuntimeRequest] = {}
        """By model, framework and vendor: a request is the same for all shapes, and reads files."""
        self._chosen: dict[RuntimeRequest, str] = {}
        self._unreachable = ""
        self.reasons: dict[str, None] = {}
        """A sentence for each choice that a user may not expect, once."""

    def choose(self, selected: Selected) -> str:
        """Return venv if the environment of a case exists or can be built, else host; host if ``python`` is set."""
        asked = self._settings.runtime == AUTO
        if not (self._engine.hosts and is_local(self._engine)):
            if not asked:
                return "venv"
            how = self._settings.as_written("runtime")
            raise Problems(
                [f"{how} chooses on this machine only; on other hosts pass --runtime=venv or --runtime=host"]
            )
        if python := self._settings.python:
            how = self._settings.as_written("python")
            if shutil.which(python) is None:
                raise Problems([f"{how}: expected a Python of this machine, which runs the training; no such program"])
            self.reasons[f"runtime host, because of {how}"] = None
            return "host"
        key = selected.case.model, selected.case.framework, selected.vendor.name
        if key not in self._requests:
            self._requests[key] = runtime_request(self._settings, self._catalog, selected.case, selected.vendor, "venv")
        request = self._requests[key]
        if request not in self._chosen:
            reason = "" if VENV.exists(self._host, request) else self._unavailable(request)
            self._chosen[request] = "host" if reason else "venv"
            if reason:
                self.reasons[f"runtime host, an installed Python, because no environment can be built: {reason}"] = None
            elif asked:
                self.reasons["runtime venv: its environment exists or can be built"] = None
        return self._chosen[request]

    @property
    def _host(self) -> Host:
        return self._engine.hosts[0]

    def _unavailable(self, request: RuntimeRequest) -> str:
        """Return why an environment cannot be built; an index that did not answer is not asked again."""
        if not self._unreachable:
            why = VENV.unavailable(self._host, request, pack({}))
            if not why.of_all:
                return why.reason
            self._unreachable = why.reason
        return self._unreachable
