"""What a host needs for the ranks of a case: the code, and the Python, made ready ahead and remembered."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, Vendor
from pytest_flagperf.hosts import Host, HostError
from pytest_flagperf.hosts.deploy import Code, pack
from pytest_flagperf.hosts.fleet import Fleet, each
from pytest_flagperf.plan import Plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.terminal.live import Live
from pytest_flagperf.runtime import BuildFailed, Interpreter, Request, RuntimeSetupError, runtimes
from pytest_flagperf.settings import Settings

from .runtime_request import runtime_request

_log = logging.getLogger("flagperf.environments")
_LASTING = ("building", "another", "pulling", "warning:")


class _NotReady(HostError):
    """A host that answers has no Python for the ranks."""


class Environments:
    """Prepares hosts for cases, each host once a run: an environment that is ready and a build that failed stay so."""

    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog
        self._codes: dict[tuple[str, str], Code] = {}
        self._requests: dict[tuple[str, str, str, str], Request] = {}
        self._ready: dict[tuple[str, str, Request], Interpreter] = {}  # by host and runtime
        self._failed: dict[tuple[str, str, Request], BuildFailed] = {}  # likewise
        self.builds = secrets.token_hex(8)
        """Equal for all processes of a run: none builds again what failed in another."""

    def code(self, plan: Plan, vendor: Vendor) -> Code:
        """What of the suites and the vendors goes to the hosts, by the name it has there."""
        suite = self._catalog.suite(plan.case.model, plan.case.framework)
        key = suite.name, vendor.name
        if key not in self._codes:
            trees = {f"suites/{plan.case.model}": suite.path.parent, f"vendors/{vendor.name}": vendor.path}
            own = self._catalog.case_folder(suite, vendor)
            if own.is_dir():
                trees[f"vendors/{vendor.name}/{suite.folder}"] = own
            shared = suite.root / "suites" / "common"
            try:
                self._codes[key] = pack(trees | ({"suites/common": shared} if shared.is_dir() else {}))
            except OSError as error:
                raise Problems([f"{error.filename}: {error.strerror}; all of that folder goes to the hosts"]) from error
        return self._codes[key]

    def request(self, case: Case, vendor: Vendor, runtime: str) -> Request:
        """What the case asks of its runtime: the same for all shapes, so the folders are looked at once."""
        key = case.model, case.framework, vendor.name, runtime
        if key not in self._requests:
            self._requests[key] = runtime_request(self._settings, self._catalog, case, vendor, runtime)
        return replace(self._requests[key], run=self.builds)

    def interpreters(self, plan: Plan, vendor: Vendor, hosts: Sequence[Host], watch: Live) -> dict[str, Interpreter]:
        """The Python of the case's framework on each host; Problems where it cannot be made ready."""
        made = self._make_ready(plan, vendor, hosts, watch)
        wrong = [str(answer) for answer in made.values() if isinstance(answer, HostError)]
        if wrong:
            raise Problems(dict.fromkeys(wrong))
        return {host.name: answer for host, answer in made.items() if isinstance(answer, Interpreter)}

    def build_ahead(self, plan: Plan, vendor: Vendor, fleet: Fleet, watch: Live) -> None:
        """Make the Python of the case's framework ready wherever the case may run, before it waits for devices.

        Problems where too few hosts have it. With enough others, a host whose build failed is left out of the run.
        """
        made = self._make_ready(plan, vendor, fleet.usable, watch)
        # A host that does not answer is dealt with where devices are taken.
        wrong = {host: answer for host, answer in made.items() if isinstance(answer, _NotReady)}
        if wrong and len(made) - len(wrong) < plan.case.nnodes:
            raise Problems(dict.fromkeys(map(str, wrong.values())))
        for host, error in wrong.items():
            if isinstance(error.__cause__, BuildFailed):
                fleet.lost(host, str(error))
                watch.note(f"left out: {error}")

    def forget(self) -> None:
        """Look again at every host: an image or an environment may be gone."""
        self._ready.clear()

    def _make_ready(
        self, plan: Plan, vendor: Vendor, hosts: Sequence[Host], watch: Live
    ) -> Mapping[Host, Interpreter | HostError]:
        """Make it ready on all hosts at once; ready hosts and builds that failed are remembered."""
        request = self.request(plan.case, vendor, plan.runtime)
        code, prepare = self.code(plan, vendor), runtimes()[plan.runtime].prepare

        def on(host: Host) -> Interpreter:
            key = host.name, plan.runtime, request
            if key in self._failed:
                raise _NotReady(str(self._failed[key])) from self._failed[key]
            if key not in self._ready:
                try:
                    self._ready[key] = prepare(host, request, lambda text: _tell(watch, host, text, len(hosts)), code)
                except RuntimeSetupError as error:
                    if isinstance(error, BuildFailed):
                        self._failed[key] = error
                    raise _NotReady(str(error)) from error
                _log.info("%s: interpreter %s", host.name, self._ready[key].python)
            return self._ready[key]

        try:
            return each(hosts, on)
        finally:
            watch.clear()


def _tell(watch: Live, host: Host, text: str, hosts: int) -> None:
    """That an environment is built is worth a line that stays; its hundred steps are not."""
    said = f"{host.name}: {text}" if hosts > 1 or not host.here else text
    (watch.note if text.startswith(_LASTING) else watch.passing)(said)
