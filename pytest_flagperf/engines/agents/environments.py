"""The code and the Python that a case's ranks need on a host: requested, prepared before a round and remembered."""

from __future__ import annotations

import logging
import secrets
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, Suite, Vendor, framework_of
from pytest_flagperf.hosts import Host, HostError
from pytest_flagperf.hosts.deploy import Code, pack
from pytest_flagperf.hosts.host_pool import HostPool, run_on_each
from pytest_flagperf.plan import Plan, is_foreign
from pytest_flagperf.problems import MissingHosts, Problems
from pytest_flagperf.progress import note
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.runtime import BuildFailed, Image, Interpreter, Look, RuntimeRequest, RuntimeSetupError, runtimes
from pytest_flagperf.runtime.requirements import OVERRIDES, conflicting, union
from pytest_flagperf.settings import Settings

_log = logging.getLogger("flagperf.environments")
_LOOKS = 4  # Pythons that are inspected at once on this machine
_PERMANENT = ("building", "another", "pulling")


class _NotReady(HostError):
    """A reachable host has no Python for the ranks; the cause says why."""


class Environments:
    """Prepares hosts for cases, each host once in a run; ready environments and failed builds are remembered."""

    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog
        self._codes: dict[tuple[str, str, str], Code] = {}
        self._requests: dict[tuple[str, str, str, str], RuntimeRequest] = {}
        self._ready: dict[tuple[str, str, RuntimeRequest], Interpreter] = {}  # by host and runtime
        self._failed: dict[tuple[str, str, RuntimeRequest], BuildFailed] = {}  # by host and runtime
        self._warnings: set[str] = set()
        self._checked: set[tuple[str, str, RuntimeRequest]] = set()  # those that no rank has used since their check
        self.builds = secrets.token_hex(8)
        """The same for all processes of a run: an environment that failed in one is not built again in another."""

    def code(self, plan: Plan) -> Code:
        """Return the code of the case's suite and vendor that is copied to the hosts."""
        suite = self._catalog.suite(plan.case.model, plan.case.framework)
        vendor = self._catalog.vendors[plan.vendor]
        key = suite.name, vendor.name, plan.further_suite
        if key not in self._codes:
            trees = {f"suites/{plan.case.model}": suite.path.parent, f"vendors/{vendor.name}": vendor.path}
            if plan.further_suite:
                model, _, framework = plan.further_suite.partition(":")
                trees[f"suites/{model}"] = self._catalog.suite(model, framework).path.parent
            own = self._catalog.case_folder(suite, vendor)
            if own.is_dir():
                trees[f"vendors/{vendor.name}/{suite.folder}"] = own
            shared = suite.root / "suites" / "common"
            try:
                self._codes[key] = pack(trees | ({"suites/common": shared} if shared.is_dir() else {}))
            except OSError as error:
                raise Problems(
                    [f"{error.filename}: {error.strerror}; the whole folder is copied to the hosts"]
                ) from error
        return self._codes[key]

    def request(self, case: Case, vendor: Vendor, runtime: str) -> RuntimeRequest:
        """Return the case's request to its runtime; it is the same for all shapes, so folders are read once."""
        key = case.model, case.framework, vendor.name, runtime
        if key not in self._requests:
            self._requests[key] = runtime_request(self._settings, self._catalog, case, vendor, runtime)
        return replace(self._requests[key], run=self.builds)

    def request_of(self, plan: Plan) -> RuntimeRequest:
        """Return the request of a planned case."""
        request = self.request(plan.case, self._catalog.vendors[plan.vendor], plan.runtime)
        return self._without_additions(plan, request) if "segments" in plan.replay else request

    def _without_additions(self, plan: Plan, request: RuntimeRequest) -> RuntimeRequest:
        """Return the request without the vendor's packages and variables; its device may need those of vendor.toml."""
        suite = self._catalog.suite(plan.case.model, plan.case.framework)
        clean = replace(request, environment_file=None, extension=None, overrides=())
        if is_foreign(plan.device):
            return clean
        shared = not runtimes()[plan.runtime].takes_python
        return replace(clean, environment=(), requirements=requirements(self._catalog, suite, shared=shared))

    def interpreters(self, plan: Plan, hosts: Sequence[Host]) -> dict[str, Interpreter]:
        """Return the Python of the case's framework on each host, for a round; Problems if it cannot be prepared."""
        prepared = self._prepare(plan, hosts)
        self._checked.clear()  # the round's ranks could change it, and that of other cases
        failed = [answer for answer in prepared.values() if isinstance(answer, HostError)]
        if failed:
            kind = Problems if any(isinstance(error, _NotReady) for error in failed) else MissingHosts
            raise kind(dict.fromkeys(map(str, failed)))
        return {host.name: answer for host, answer in prepared.items() if isinstance(answer, Interpreter)}

    def build_ahead(self, plan: Plan, pool: HostPool) -> None:
        """Prepare the Python of the case's framework on all hosts of the run, before the case waits for devices.

        Problems if too few hosts have it. With enough other hosts, a host whose build failed is left out of the run.
        """
        prepared = self._prepare(plan, pool.usable)
        # Hosts that do not answer are handled when devices are acquired.
        failed = {host: answer for host, answer in prepared.items() if isinstance(answer, _NotReady)}
        if failed and len(prepared) - len(failed) < plan.shape.nnodes:
            raise Problems(dict.fromkeys(map(str, failed.values())))
        for host, error in failed.items():
            if isinstance(error.__cause__, BuildFailed):
                pool.exclude(host, str(error))
                note("line", text=f"left out: {error}")

    def look(self, plans: Sequence[Plan], host: Host) -> None:
        """Remember the Pythons of the cases that the host has already; ignore errors, which recur later."""
        distinct = self._distinct(plans, host)
        shared = Look(_packages(request for _, _, request in distinct))

        def inspect(key: tuple[str, str, RuntimeRequest], plan: Plan) -> None:
            with suppress(HostError, RuntimeSetupError, OSError, Problems):
                request = replace(key[2], shared=shared)
                if interpreter := runtimes()[plan.runtime].look(host, request, self.code(plan)):
                    self._remember(key, interpreter)

        with ThreadPoolExecutor(_LOOKS if host.is_local else 1) as pool:
            list(pool.map(inspect, distinct.keys(), distinct.values()))

    def warnings(self, plans: Sequence[Plan], hosts: Sequence[Host]) -> list[str]:
        """Return the warnings about the hosts' installed Pythons that have not been shown, each once."""
        plans = [plan for plan in plans if runtimes()[plan.runtime].takes_python]  # the others have what is required
        lines = []
        for host in hosts:
            self.look(plans, host)
            ready = (self._ready.get(self._key(plan, host)) for plan in plans)
            for text in dict.fromkeys(text for interpreter in ready if interpreter for text in interpreter.warnings()):
                if (line := f"warning: {text}") not in self._warnings:
                    lines.append(line if len(hosts) == 1 else f"warning: {host.name}: {text}")
                self._warnings.add(line)
        return lines

    def to_build(self, plans: Sequence[Plan], host: Host) -> list[str]:
        """Return a line about the Pythons that must be built on a host, and how to build only one of several."""
        first: dict[str, Plan] = {}
        for key, plan in self._distinct(plans, host).items():
            with suppress(HostError, RuntimeSetupError, OSError):
                if amount := runtimes()[plan.runtime].to_build(host, key[2], self.code(plan)):
                    first[f"{plan.case.framework} ({amount})"] = plan
        if not first:
            return []
        lines = [f"to build first: {count(len(first), 'environment')}: {', '.join(first)}"]
        if len(first) > 1:
            case = next(iter(first.values())).case
            lines.append(f'-k "{case.model} and {case.framework}" needs only the first of them')
        return lines

    def _distinct(self, plans: Sequence[Plan], host: Host) -> dict[tuple[str, str, RuntimeRequest], Plan]:
        """Return the first case of each Python that is not known to be ready on a host."""
        first: dict[tuple[str, str, RuntimeRequest], Plan] = {}
        for plan in plans:
            first.setdefault(self._key(plan, host), plan)
        return {key: plan for key, plan in first.items() if key not in self._ready}

    def _remember(self, key: tuple[str, str, RuntimeRequest], interpreter: Interpreter) -> None:
        if self._ready.get(key) != interpreter:
            _log.info("%s: interpreter %s", key[0], interpreter.python)
        self._ready[key] = interpreter
        self._checked.add(key)

    def forget(self) -> None:
        """Forget the prepared hosts: an image or an environment may be gone."""
        self._checked.clear()
        self._ready.clear()

    def _prepare(self, plan: Plan, hosts: Sequence[Host]) -> Mapping[Host, Interpreter | HostError]:
        """Prepare all hosts at once; prepared hosts and failed builds are remembered."""
        code, runtime = self.code(plan), runtimes()[plan.runtime]

        def on(host: Host) -> Interpreter:
            key = _, _, request = self._key(plan, host)
            if key in self._failed:
                raise _NotReady(str(self._failed[key])) from self._failed[key]
            try:
                interpreter = self._ready.get(key)
                if interpreter is None or not (key in self._checked or runtime.is_unchanged(host, interpreter, code)):
                    interpreter = runtime.prepare(host, request, lambda text: self.show(host, text, len(hosts)), code)
            except RuntimeSetupError as error:
                if isinstance(error, BuildFailed):
                    self._failed[key] = error
                raise _NotReady(str(error)) from error
            self._remember(key, interpreter)
            for text in interpreter.warnings():
                self.show(host, f"warning: {text}", len(hosts))
            return interpreter

        try:
            return run_on_each(hosts, on)
        finally:
            note("phase_end")

    def show(self, host: Host, text: str, hosts: int = 1) -> None:
        """Show a warning once, the start of a build as a permanent line, and its steps as a line that is replaced."""
        line = f"{host.name}: {text}" if hosts > 1 or not host.is_local else text
        if text.startswith("warning:"):
            if text not in self._warnings:
                note("line", text=line)
            self._warnings.add(text)
        elif text.startswith(_PERMANENT):
            note("phase", text=line, lasting=True)
        else:
            note("activity", text=line)

    def _key(self, plan: Plan, host: Host) -> tuple[str, str, RuntimeRequest]:
        return host.name, plan.runtime, self.request_of(plan)


_FILE = "requirements.txt"


def _packages(requests: Iterable[RuntimeRequest]) -> Iterator[str]:
    """Yield the packages that any of the requests requires; ignore errors, which recur later."""
    for request in requests:
        with suppress(RuntimeSetupError):
            yield from (found.name for line in union(request.requirements) if (found := line.requirement))


def runtime_request(settings: Settings, catalog: Catalog, case: Case, vendor: Vendor, runtime: str) -> RuntimeRequest:
    """Return the request of a case, without the id of the run."""
    suite = catalog.suite(case.model, case.framework)
    kind, own = runtimes()[runtime], catalog.case_folder(suite, vendor)
    of_vendor = (vendor.path / "images" / framework_of(suite) / _FILE, own / "config" / _FILE)
    environment = own / "config" / "environment_variables.sh"
    return RuntimeRequest(
        framework_of(suite),
        requirements(catalog, suite, *of_vendor, shared=not kind.takes_python),
        tuple(filter(Path.is_file, [own / "config" / OVERRIDES])),
        of_framework=_of_framework(catalog, suite) if kind.takes_python else (),
        python=settings.python if kind.takes_python else None,
        pip_source=settings.pip_source,
        wheels=settings.wheels,
        uv_settings=tuple(vendor.toml.uv.items()),
        environment=tuple(vendor.toml.environment.items()),
        environment_file=environment if environment.is_file() else None,
        image=_image(settings, catalog, case, vendor) if kind.uses_images else Image(),
        extension=extension if (extension := own / "csrc").is_dir() else None,
    )


def _image(settings: Settings, catalog: Catalog, case: Case, vendor: Vendor) -> Image:
    """Return the image of the case's container and its options: from the settings, else from the vendor."""
    suite = catalog.suite(case.model, case.framework)
    framework = framework_of(suite, case.framework)
    container, vendors_image = vendor.toml.container, vendor.image(framework)
    own = catalog.case_folder(suite, vendor)
    given = settings.image
    words, unreadable = _container_options(settings)
    sources = [settings.as_written(key) for key in ("container_opt", "shm_size") if getattr(settings, key)]
    return Image(
        image=given or (vendors_image.name if vendors_image else None),
        image_source=settings.as_written("image") if given else vendors_image.by if vendors_image else "",
        folder=vendors_image.folder if vendors_image and not given else None,
        expected=f"vendors/{vendor.name}/images/{framework}/Dockerfile",
        extras=own if own.is_dir() else None,
        options=(*container.options, *words),
        unreadable=unreadable,
        options_source=" and ".join([*sources, *([f"vendors/{vendor.name}/vendor.toml"] if container.options else [])]),
        privileged_source=f"vendors/{vendor.name}/vendor.toml" if "--privileged" in container.options else None,
    )


def _container_options(settings: Settings) -> tuple[list[str], str]:
    """Return the words of all given options, split like a shell does, and the reason if they cannot be split."""
    size = ["--shm-size", settings.shm_size] if settings.shm_size else []
    try:
        return [*(word for text in settings.container_opt for word in shlex.split(text)), *size], ""
    except ValueError as error:
        return [], f"{settings.as_written('container_opt')}: {error}"


def requirements(catalog: Catalog, suite: Suite, *more: Path, shared: bool = True) -> tuple[Path, ...]:
    """Return the requirements files of a case's environment: of its suite, its vendor (more) and of other suites.

    With ``shared`` the suites of a framework share one environment. A suite whose requirements conflict with those of
    another suite has its own, and so does a case whose vendor's requirements conflict with those of another suite.
    """
    own = [file for file in (suite.path / _FILE, *more) if file.is_file()]
    if not shared:
        return tuple(own)
    of_framework = _of_framework(catalog, suite)
    conflicts = conflicting(of_framework)
    files = dict.fromkeys([*(file for file in of_framework if file not in conflicts), *own])
    return tuple(own if conflicts.intersection(own) or conflicting(files) else files)


def _of_framework(catalog: Catalog, suite: Suite) -> tuple[Path, ...]:
    """Return the requirements files of all suites of the framework."""
    suites = [other for _, other in sorted(catalog.suites.items()) if framework_of(other) == framework_of(suite)]
    return tuple(file for other in suites if (file := other.path / _FILE).is_file())
