"""The installed plugins: find, check and call them. A problem always names the package."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pluggy

from .. import __version__
from ..packages import CHECKOUT, OWN, project_of_checkout
from ..problems import Problems, near, shown
from . import specs

T = TypeVar("T")


class Named(Protocol):
    """What plugins provide by name."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_log = logging.getLogger("flagperf.plugins")
FIX = "fix or uninstall the package"


@dataclass(frozen=True)
class Plugin:
    """A plugin: the name of its entry point, and its package with the version."""

    name: str
    package: str
    version: str

    @property
    def label(self) -> str:
        """The package for messages, as in ``the installed lab-flagperf 1.2``."""
        return f"the installed {self.package} {self.version}"


@dataclass(frozen=True)
class Answer(Generic[T]):
    """The values that a hook of a plugin returned, or a sentence with the problem."""

    plugin: Plugin
    values: tuple[T, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class _Loaded:
    manager: pluggy.PluginManager
    plugins: tuple[Plugin, ...]


def installed_plugins() -> tuple[Plugin, ...]:
    """Return the plugins of other packages, sorted by name; Problems if one of them is invalid."""
    return tuple(plugin for plugin in _load().plugins if plugin.package != OWN)


def having(hook: str) -> frozenset[str]:
    """Return the names of the plugins that have this hook."""
    return frozenset(impl.plugin_name for impl in getattr(_load().manager.hook, hook).get_hookimpls())


def call(hook: str, *types: type[T], **arguments: Any) -> Iterator[Answer[T]]:
    """Call a hook of every plugin that has it; yield the values of each, which have one of these types.

    A plugin that raises an exception or returns something else does not affect the others.
    """
    loaded = _load()
    with_hook = having(hook)
    modules = {plugin: loaded.manager.get_plugin(plugin.name) for plugin in loaded.plugins}
    for plugin in loaded.plugins:
        if plugin.name not in with_hook:
            continue
        others = [module for other, module in modules.items() if other != plugin]
        caller = loaded.manager.subset_hook_caller(hook, others)
        try:
            returned = caller(**arguments)  # pluggy leaves out None
            value: Any = returned[0] if returned else None
            is_list = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
            values = tuple(value) if is_list else (value,)
        except Exception as error:  # any code of the package runs here
            yield Answer(plugin, problem=f"{plugin.label}: {hook}() raised {_raised(error, modules[plugin])}; {FIX}")
            continue
        wrong = [shown(value) for value in values if not isinstance(value, types)]
        if is_list and not wrong:
            yield Answer(plugin, values)
        else:
            expected = f"a list of {' or '.join(kind.__name__ for kind in types)}"
            got = f"a list with {wrong[0]}" if is_list else shown(value)
            yield Answer(plugin, problem=f"{plugin.label}: {hook}() returned {got}; expected {expected}; {FIX}")


def named(hook: str, kind: type[N], taken: Iterable[str] = ()) -> dict[str, tuple[Plugin, N]]:
    """Return what a hook of all plugins provides, by its name; Problems for a name that is used twice or ``taken``."""
    by_name: dict[str, tuple[Plugin, N]] = {}
    problems: list[str] = []
    for answer in call(hook, kind):
        problems += [answer.problem] if answer.problem else []
        for value in answer.values:
            where = f"{answer.plugin.label}: {hook}(): the name {value.name!r}"
            if not isinstance(value.name, str) or not _NAME.fullmatch(value.name):
                problems.append(f"{where} is invalid; expected letters, digits, - and _; {FIX}")
            elif value.name in taken:
                problems.append(f"{where} belongs to pytest-flagperf; {FIX}")
            elif value.name in by_name:
                other = by_name[value.name][0]
                problems.append(f"{where} is also used by {other.label}; uninstall one of them")
            else:
                by_name[value.name] = answer.plugin, value
    if problems:
        raise Problems(problems)
    return dict(sorted(by_name.items()))


def guard(plugin: Plugin, what: str, work: Callable[[], T], expected: tuple[type[Exception], ...] = ()) -> T:
    """Return the result of a plugin's code; an exception that is not ``expected`` becomes Problems with the package."""
    try:
        return work()
    except Exception as error:  # any code of the package runs here
        if isinstance(error, (Problems, *expected)):
            raise
        module = _load().manager.get_plugin(plugin.name)
        raise Problems([f"{plugin.label}: {what} raised {_raised(error, module)}; {FIX}"]) from error


@cache
def _load() -> _Loaded:
    """Load the installed plugins, once per process; Problems with all that is wrong with them."""
    manager = pluggy.PluginManager(specs.PROJECT)
    manager.add_hookspecs(specs)
    plugins: dict[str, Plugin] = {}
    problems: list[str] = []
    for plugin, point in [*_own_points(), *_points_of_others()]:
        where = f"{plugin.label}: entry point {point.name} = {point.value!r} of {specs.PROJECT}"
        if not plugin.version:
            why = "the package has no version in its metadata, and results record the versions of plugins"
            problems.append(f"the installed {plugin.package}: {why}; install it again")
        elif not _NAME.fullmatch(point.name):
            problems.append(f"{where}: expected a name of letters, digits, - and _; {FIX}")
        elif other := plugins.get(point.name):
            problems.append(f"plugin {point.name} exists twice: in {other.label} and in {plugin.label}; uninstall one")
        else:
            plugins[point.name] = plugin
            problems += [f"{where}: {problem}; {FIX}" for problem in _register(manager, point)]
    if problems:
        raise Problems(problems)
    return _Loaded(manager, tuple(plugins.values()))


def _own_points() -> Iterator[tuple[Plugin, EntryPoint]]:
    """Yield the packages of our wheel; in a checkout, installed or not, those of its packages/."""
    if project := project_of_checkout():
        own = project["entry-points"][specs.PROJECT]
        points = [EntryPoint(name, value, specs.PROJECT) for name, value in own.items()]
        sys.path += [str(CHECKOUT / "packages" / point.name) for point in points]
    else:
        points = [point for point in entry_points(group=specs.PROJECT) if _package_of(point)[0] == OWN]
    yield from ((Plugin(point.name, OWN, __version__), point) for point in points)


def _points_of_others() -> Iterator[tuple[Plugin, EntryPoint]]:
    points = sorted(entry_points(group=specs.PROJECT), key=lambda point: (point.name, *_package_of(point)))
    others = ((Plugin(point.name, *_package_of(point)), point) for point in points)
    yield from ((plugin, point) for plugin, point in others if plugin.package != OWN)


def _package_of(point: EntryPoint) -> tuple[str, str]:
    """Return the name and the version of the package of an entry point; an empty version if it has none."""
    metadata: Any = (point.dist and point.dist.metadata) or {}
    return str(metadata.get("Name", "package without a name")), str(metadata.get("Version", ""))


def _register(manager: pluggy.PluginManager, point: EntryPoint) -> Iterator[str]:
    """Import a plugin and register its hooks; yield what is wrong with it."""
    try:
        module = point.load()
    except (Exception, SystemExit) as error:  # any code of the package may run here
        yield f"cannot be imported: {_raised(error, sys.modules.get(point.module))}"
        return
    if manager.is_registered(module):
        yield "another entry point has the same plugin"
        return
    try:
        manager.register(module, point.name)
    except pluggy.PluginValidationError as error:
        yield " ".join(str(error).split())
        return
    known = [name for name in vars(specs) if name.startswith(f"{specs.PROJECT}_")]
    callers = manager.get_hookcallers(module) or []
    for name in sorted(caller.name for caller in callers if not caller.has_spec()):
        yield f"unknown hook {name}(){near(name, known) or f'; the hooks are {_listed(known)}'}"
    unmarked = sorted({name for name in known if callable(getattr(module, name, None))} - {c.name for c in callers})
    for name in unmarked:
        yield f"{name}() lacks the decorator @hookimpl of pytest_flagperf.hooks"
    if not callers and not unmarked:
        yield f"it has no hook; the hooks are {_listed(known)}"


def _listed(names: list[str]) -> str:
    return ", ".join(f"{name}()" for name in names)


def _raised(error: BaseException, module: object) -> str:
    """Return the type and text of an exception, and the last line of the plugin that led to it; log the traceback."""
    _log.info("a plugin raised an exception", exc_info=error)
    frames = traceback.extract_tb(error.__traceback__)
    folder = str(Path(getattr(module, "__file__", None) or "").parent)
    own = [frame for frame in frames if module is not None and frame.filename.startswith(folder)]
    place = f" ({(own or frames)[-1].filename}:{(own or frames)[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
