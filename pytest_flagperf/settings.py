"""What a user may ask for: one table of options, and where each value came from."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from flagperf_driver import addresses

from . import expected as expectations
from . import redaction
from .expected import Expected
from .limits import LARGEST_INT
from .problems import Problems, kind, near, shown, unusable_path

COMMAND_LINE = "command line"
DEFAULT = "default"
QUESTIONS = {
    "converges": "each round reaches the suite's target",
    "throughput": "the throughputs are complete and plausible",
    "speedup": "many cards are faster than one card, by at least the required efficiency",
}
"""The markers of a benchmark's tests, each with its meaning."""
_NUMBER = re.compile(r"[0-9.]+")
LACKS = "holds neither vendors/<vendor>/vendor.toml nor suites/<model>/<framework>/suite.toml"


class SettingsError(Problems):
    """Options or a settings file that cannot be used."""


RUNS = "flagperf, what runs: vendor, chip, shapes and rounds select the cases"
MEASURED = "flagperf, what is measured: the scale, the training data and the parameters of a case"
RESULTS = "flagperf, results: where reports go, and which baselines they are compared with"
WHERE = (
    "flagperf, where it runs: the hosts, and where the Python of the ranks comes from.\n"
    "Settings of a site (leases, container options, sampling, package index and more) are keys of flagperf.toml;\n"
    "docs/using.md lists them"
)
GROUPS = (RUNS, MEASURED, RESULTS, WHERE)
"""The titles of the groups of ``pytest --help``."""
SITE = "site"
"""The group of the options that describe a site. They are keys of the settings file, and not on the command line."""


@dataclass(frozen=True)
class Option:
    """One option: ``name`` in the settings file and, unless its group is SITE, ``--name`` on the command line.

    A flag also has ``--no-name``. A ``path`` is relative to where it was given: the directory of the command line, the
    folder of the file. Of ``many`` the command line's take the place of the file's; the roots are added to the file's.

    ``public`` returns what of a value may be stored and shown: of an option that does not say so, nothing.
    """

    name: str
    group: str
    help: str
    metavar: str | None = None
    default: Any = None
    choices: tuple[str, ...] = ()
    many: bool = False
    flag: bool = False
    path: bool = False
    public: Callable[[str], str] = redaction.hidden

    def shown(self, value: object) -> str:
        """Return what of a value may be stored and shown."""
        if self.flag or self.path or self.choices or isinstance(self.default, (int, float)):
            return str(value)
        return self.public(str(value))

    def may_be_stored(self, value: object) -> bool:
        """Whether nothing in a value is secret."""
        words = value if isinstance(value, (tuple, list)) else (value,)
        return all(isinstance(word, (int, float)) or self.shown(word) == str(word) for word in words)

    @property
    def key(self) -> str:
        """The name Python knows it by."""
        return self.name.replace("-", "_")


OPTIONS = (
    Option("vendor", RUNS, "maker of the accelerators: a folder of vendors/", "NAME", "cpu", public=redaction.as_given),
    Option("hw", RUNS, "chip of that vendor (default: its first)", "CHIP", public=redaction.as_given),
    Option(
        "nodes",
        RUNS,
        "shapes to run, hosts x cards each (default: what vendor.toml names)",
        "NxP[,NxP...]",
        public=redaction.as_given,
    ),
    Option("repeat", RUNS, "rounds of each case", "N", 1),
    Option(
        "case",
        RUNS,
        "one case in full, model:framework:hardware:nnodes:nproc:repeat; may be given again",
        "CASE[=DATA_DIR]",
        (),
        many=True,
        public=redaction.as_given,
    ),
    Option(
        "data-dir", MEASURED, "folder of the training data, for every case that names none itself", "DIR", path=True
    ),
    Option(
        "runtime",
        WHERE,
        "where the ranks' Python comes from (default: what vendor.toml names)",
        default=None,
        choices=("host", "venv", "docker"),
    ),
    Option("python", SITE, 'the interpreter of runtime "host" (default: python3 on the PATH)', "PATH", path=True),
    Option("pip-source", SITE, "package index that environments are built from", "URL", public=redaction.address),
    Option("launcher", SITE, "who starts the ranks of a host", default="env", choices=("env", "torchrun")),
    Option(
        "scale",
        MEASURED,
        "the real model and data, or the small version of the same code (default: what vendor.toml names)",
        choices=("reference", "small"),
    ),
    Option(
        "synthetic",
        MEASURED,
        "real shapes from a seeded generator instead of data: throughput only",
        default=False,
        flag=True,
    ),
    Option(
        "throughput-only",
        MEASURED,
        "every case measures throughput alone, in bounded steps; with --no- every case trains to its target (default:"
        " one card at the reference scale measures throughput alone)",
        default=False,
        flag=True,
    ),
    Option(
        "set",
        MEASURED,
        "another value for a mutable parameter; may be given again",
        "KEY=VALUE",
        (),
        many=True,
        public=redaction.assignment,
    ),
    Option(
        "roots",
        RUNS,
        "another folder that holds vendors/ or suites/, beside the tree's own; may be given again",
        "DIR",
        (),
        many=True,
        path=True,
    ),
    Option("plan", RUNS, "print what would run, where and with which values; start nothing", default=False, flag=True),
    Option("reports", RESULTS, "folder of the run directories", "DIR", "reports", path=True),
    Option("baselines", SITE, "folder of the accepted baselines", "DIR", "reports/baselines", path=True),
    Option(
        "accept-baseline",
        RESULTS,
        "write what this run measures as the baseline of each case that passes, and fail nothing for the old one",
        default=False,
        flag=True,
    ),
    Option(
        "unlike",
        RESULTS,
        "compare with a baseline of another machine, driver or config all the same, and say so",
        default=False,
        flag=True,
    ),
    Option(
        "lease",
        SITE,
        "what a case takes for itself: its devices or the whole host (default: what vendor.toml names)",
        choices=("device", "host"),
    ),
    Option(
        "bind",
        SITE,
        "cores that a rank may use: those near its device, or one where a card is a core (auto); all of its host's"
        " (none)",
        default="auto",
        choices=("auto", "none"),
    ),
    Option("test-conf", RUNS, "the original's test_conf.py, used as it is", "FILE", path=True),
    Option(
        "cluster",
        WHERE,
        "machines to run on, over SSH, instead of this one; how to log in stands in [cluster] of flagperf.toml",
        "[USER@]HOST[:PORT][,...]",
        public=redaction.hosts,
    ),
    Option("cluster-conf", WHERE, "the original's cluster_conf.py, used as it is", "FILE", path=True),
    Option(
        "image", WHERE, "the container image to use, instead of building the vendor's", "IMAGE", public=redaction.image
    ),
    Option(
        "container-opt",
        SITE,
        'other options of docker run for the ranks\' containers, as in ["--memory 64g"]',
        "OPTION",
        (),
        many=True,
        public=redaction.container_options,
    ),
    Option(
        "shm-size",
        SITE,
        "size of a container's /dev/shm (default: what vendor.toml names, else 32g)",
        "SIZE",
        public=redaction.as_given,
    ),
    Option("clear-caches", SITE, "drop the hosts' file caches before each round", default=False, flag=True),
    Option(
        "sample",
        SITE,
        "seconds between two samples of the devices, down to 0.01",
        "SECONDS",
        1.0,
    ),
    Option(
        "lease-time",
        SITE,
        "seconds for which ranks on other machines go on when this one is gone",
        "SECONDS",
        600.0,
    ),
    Option("preflight", RUNS, "look at every host and say what is in the way; start nothing", default=False, flag=True),
    Option(
        "resume",
        RUNS,
        "a run directory to go on with: take up what still runs, skip what is done, run again what failed",
        "RUN",
        path=True,
    ),
)

_BY_KEY = {option.key: option for option in OPTIONS}
COMMAND_LINE_OPTIONS = tuple(option for option in OPTIONS if option.group != SITE)
RENAMED = {"hosts": "cluster"}
"""Former names of options, each with the name that replaced it."""


def check_unknown(unknown: Sequence[str], arguments: Sequence[str], rootpath: Path) -> None:
    """Raise if words that pytest does not know are former names of options, or keys of the settings file."""
    names = {word.partition("=")[0].removeprefix("--") for word in unknown if word.startswith("--")}
    problems = [f"--{old} was renamed; use --{new}" for old, new in RENAMED.items() if old in names]
    names |= {name.removeprefix("no-") for name in names}
    site = [option for option in OPTIONS if option.group == SITE and option.name in names]
    if site:
        root = find_root(rootpath) or rootpath
        file, _ = settings_file(root) or (root / "flagperf.toml", {})
        place = f"[tool.flagperf] of {file}" if file.name == "pyproject.toml" else str(file)
        problems += [
            f"--{option.name} is a setting of flagperf.toml: write {_as_setting(option, arguments)} in {place}"
            for option in site
        ]
    if problems:
        raise SettingsError(problems)


def _as_setting(option: Option, arguments: Sequence[str]) -> str:
    """The line of a settings file that sets what a command line asked for."""
    if option.flag:
        return f"{option.name} = {'false' if f'--no-{option.name}' in arguments else 'true'}"
    values = []
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == f"--{option.name}":
            values.append(option.shown(value if equals else following))
    if not values:
        return f"{option.name} = ..."
    if isinstance(option.default, float):
        return f"{option.name} = {values[-1] if _NUMBER.fullmatch(values[-1]) else '...'}"
    return f"{option.name} = {shown(values if option.many else values[-1])}"


@dataclass(frozen=True)
class ClusterTable:
    """The table [cluster] as it stands in a file."""

    table: Mapping[str, Any]
    file: Path


@dataclass(frozen=True, repr=False)
class Settings:
    """Every option's value; ``sources`` says where each was given. Without a ``repr``: a value may be a password."""

    vendor: str
    hw: str | None
    nodes: str | None
    repeat: int
    case: tuple[str, ...]
    data_dir: str | None
    runtime: str | None
    python: str | None
    pip_source: str | None
    launcher: str
    scale: str | None
    synthetic: bool
    throughput_only: bool
    set: tuple[str, ...]
    roots: tuple[str, ...]
    plan: bool
    reports: str
    baselines: str
    accept_baseline: bool
    unlike: bool
    lease: str | None
    bind: str
    test_conf: str | None
    cluster: str | None
    cluster_conf: str | None
    image: str | None
    container_opt: tuple[str, ...]
    shm_size: str | None
    clear_caches: bool
    sample: float
    lease_time: float
    preflight: bool
    resume: str | None
    cluster_table: ClusterTable | None = None
    expected: tuple[Expected, ...] = ()
    expected_in: str = ""
    """The file with the tables of ``expected``."""
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_default(self) -> bool:
        """Whether neither the command line nor a file set any option."""
        return set(self.sources.values()) == {DEFAULT}

    def given(self, key: str) -> bool:
        """Whether somebody chose this value."""
        return self.sources[key] != DEFAULT

    def commanded(self, key: str) -> bool:
        """Whether it was chosen on the command line."""
        return self.sources[key] == COMMAND_LINE

    def told(self, key: str) -> str:
        """An option as it was written, for messages: ``--nodes=1x8``, or the file and what stands there."""
        option, value = _BY_KEY[key], getattr(self, key)
        public = [option.shown(each) for each in (value if isinstance(value, tuple) else (value,))]
        if self.commanded(key):
            return " ".join(f"--{option.name}={shlex.quote(each)}" for each in public)
        stored = public if option.many else value if option.may_be_stored(value) else public[0]
        return f"{self.sources[key]}: {option.name} = {shown(stored)}"


def tree_root(rootpath: Path, command_line: Mapping[str, Any]) -> Path | None:
    """The tree that a pytest run is about, if it is about one; cheap, for every pytest run anywhere asks."""
    return find_root(rootpath) or (rootpath if _given(command_line) else None)


def find_root(rootpath: Path) -> Path | None:
    """The nearest folder, upwards, that holds suites, vendors or settings."""
    return next((folder for folder in (rootpath, *rootpath.parents) if _is_root(folder)), None)


def _is_root(folder: Path) -> bool:
    # os.path and not Path.is_file: a folder above that may not be looked into is no error.
    if os.path.isfile(folder / "flagperf.toml"):  # noqa: PTH113
        return True
    for name, files in (("suites", "suites/*/*/suite.toml"), ("vendors", "vendors/*/vendor.toml")):
        if os.path.isdir(folder / name) and any(folder.glob(files)):  # noqa: PTH112
            return True
    return _mentions_us(folder / "pyproject.toml") and settings_file(folder) is not None


def _mentions_us(project: Path) -> bool:
    """Whether a pyproject.toml is worth reading: those of other projects may be large, or broken."""
    try:
        return b"flagperf" in project.read_bytes()
    except OSError:
        return False


def settings_file(root: Path) -> tuple[Path, dict[str, Any]] | None:
    """The settings file of a tree and its table: flagperf.toml, else [tool.flagperf] of pyproject.toml."""
    own = root / "flagperf.toml"
    if own.is_file():
        return own, _load(own)
    project = root / "pyproject.toml"
    tools = _load(project).get("tool") if project.is_file() else None
    table = tools.get("flagperf") if isinstance(tools, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise SettingsError([f"{project}: tool.flagperf: expected a table, [tool.flagperf], got {kind(table)}"])
    return project, table


def read_settings(command_line: Mapping[str, Any], root: Path, cwd: Path | None = None) -> Settings:
    """The command line over the settings file over the defaults; paths come out absolute."""
    root = root.absolute()
    values: dict[str, Any] = {option.key: option.default for option in OPTIONS}
    values |= {key: located(values[key], root) for key in ("reports", "baselines")}
    sources = dict.fromkeys(values, DEFAULT)
    problems: list[str] = []
    found = settings_file(root)
    roots: tuple[str, ...] = (str(root),)
    cluster_table = None
    expected: tuple[Expected, ...] = ()
    if found is not None:
        path, table = found
        table = dict(table)
        if "expected" in table:
            expected = expectations.of_tables(table.pop("expected"), str(path), problems)
        if "cluster" in table and not isinstance(table["cluster"], str):
            cluster_table = _cluster(table, path, problems)
        if "roots" in table:
            roots = _roots(table.pop("roots"), path, problems)
            sources["roots"] = str(path)
        in_file = _checked(table, path, problems)
        problems += [f"{path}: {problem}" for problem in _unusable_paths(in_file, path.parent)]
        _take(values, sources, _located(in_file, path.parent), str(path))
    given = _given(command_line)
    problems += [f"--{problem}" for problem in _unusable_paths(given, cwd or Path.cwd())]
    _take(values, sources, _located(given, cwd or Path.cwd()), COMMAND_LINE)
    # A run that goes on with another is given that one's roots, the tree among them.
    if not problems:
        others = (each for each in values["roots"] if Path(each) != root)
        problems += [f"--roots={each}: {wrong}" for each in others if (wrong := _no_root(each))]
    values["roots"] = dict.fromkeys((*roots, *values["roots"]))
    _check_numbers(values, sources, problems)
    if values["image"] is not None and not redaction.is_image(values["image"]):
        image = shown(redaction.image(values["image"]))
        problems.append(f"image = {image} ({sources['image']}): expected the name of an image, as docker pull takes it")
    if problems:
        raise SettingsError(problems)
    for option in OPTIONS:
        if option.many:
            values[option.key] = tuple(values[option.key])
    file = str(found[0]) if found is not None else ""
    return Settings(**values, cluster_table=cluster_table, expected=expected, expected_in=file, sources=sources)


def located(path: str, folder: Path) -> str:
    """A path that was given in a folder, as an absolute one."""
    return str(folder / os.path.expanduser(path))  # noqa: PTH111 - Path's raises where there is no such user


def split_case(text: str) -> tuple[str, str | None]:
    """CASE=DIR as the case and its data directory."""
    case, _, folder = text.partition("=")
    return case, folder or None


def _given(command_line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in command_line.items() if value is not None}


def _located(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What was given in a folder, with the paths in it absolute."""
    values = dict(given)
    for option in OPTIONS:
        # A program's bare name is looked for on the PATH.
        if option.path and option.key in given and (option.key != "python" or "/" in given[option.key]):
            value = given[option.key]
            values[option.key] = [located(each, folder) for each in value] if option.many else located(value, folder)
    if "case" in given:
        values["case"] = [_located_case(text, folder) for text in given["case"]]
    return values


def _located_case(text: str, folder: Path) -> str:
    case, data_dir = split_case(text)
    return f"{case}={located(data_dir, folder)}" if data_dir else case


def _unusable_paths(given: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield what is wrong with the paths that were given in a folder, each with its option's name."""
    for option in OPTIONS:
        value = given.get(option.key)
        if value is None or not (option.path or option.key == "case"):
            continue
        for each in value if option.many else (value,):
            path = split_case(each)[1] if option.key == "case" else each
            if path == "":
                yield f"{option.name} is empty: expected a path"
            elif path is not None and (wrong := unusable_path(path) or unusable_path(located(path, folder))):
                yield f"{option.name}: {shown(addresses.shown(path))}: {wrong}"


def _roots(given: object, path: Path, problems: list[str]) -> tuple[str, ...]:
    """The folders to look for suites and vendors in; every one must be there, and hold some."""
    if not isinstance(given, list) or not given or not all(isinstance(item, str) for item in given):
        problems.append(
            f"{path}: roots = {addresses.words_shown(shown(given))}: a list of folders is wanted, at least one"
        )
        return ()
    roots = tuple(located(item, path.parent) for item in given)
    own = path.parent.resolve()
    for item, root in zip(given, roots, strict=True):
        wrong = unusable_path(item) or unusable_path(root)
        if wrong is None and Path(root).resolve() != own:
            wrong = _no_root(root)
        problems += [f"{path}: roots: {addresses.shown(root)}: {wrong}"] if wrong else []
    return () if problems else roots


def _no_root(root: str) -> str | None:
    """What a folder lacks to be looked for suites and vendors in."""
    folder = Path(root)
    try:
        if not folder.is_dir():
            return "there is no such folder"
        if holds_some(folder):
            return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if above := next(filter(holds_some, folder.resolve().parents[:2]), None):
        return f"it is the folder above vendors/ or suites/ that is wanted: {above}"
    return f"it {LACKS}"


def holds_some(folder: Path) -> bool:
    """Whether there is a suite or a vendor in it."""
    return any(any(folder.glob(files)) for files in ("vendors/*/vendor.toml", "suites/*/*/suite.toml"))


def _cluster(table: dict[str, Any], path: Path, problems: list[str]) -> ClusterTable | None:
    """The table [cluster], taken out; who starts the ranks may stand in it, and is the option all the same."""
    given = table.pop("cluster")
    if isinstance(given, dict):
        table |= {"launcher": given["launcher"]} if "launcher" in given else {}
        return ClusterTable({name: value for name, value in given.items() if name != "launcher"}, path)
    expected = "expected a table, [cluster], or a string, as in cluster = 'gpu1,gpu2'"
    problems.append(f"{path}: cluster: {expected}; got {kind(given)}")
    return None


def _take(values: dict[str, Any], sources: dict[str, str], given: Mapping[str, Any], source: str) -> None:
    for key, value in given.items():
        values[key] = value
        sources[key] = source


def _load(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not a TOML file: it is not UTF-8: {error}"]) from error
    except (ValueError, RecursionError) as error:  # a number of too many digits is a ValueError of another kind
        raise SettingsError([f"{path}: not a TOML file: {error}"]) from error
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror}"]) from error
    return table


def _checked(table: Mapping[str, Any], path: Path, problems: list[str]) -> dict[str, Any]:
    """The table by option key; every unknown name and wrong value becomes a problem."""
    options = {option.name: option for option in OPTIONS} | {option.key: option for option in OPTIONS}
    values = {}
    for name, value in table.items():
        option = options.get(name)
        if option is None:
            known = [*(option.name for option in OPTIONS), "expected"]
            hint = f"; use {RENAMED[name]}" if name in RENAMED else near(name, known)
            problems.append(f"{path}: unknown setting {name!r}{hint}")
        elif wrong := wrong_value(option, value):
            public = shown(value) if option.may_be_stored(value) else f"<{kind(value)}>"
            problems.append(f"{path}: {name} = {public}: {wrong}")
        else:
            values[option.key] = value
    return values


def wrong_value(option: Option, value: Any) -> str | None:
    """Return what is wrong with a value of a settings file or of a stored run; None for a good one."""
    if option.flag:
        return None if isinstance(value, bool) else "true or false is wanted"
    if option.many:
        fine = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return None if fine else "a list of strings is wanted"
    if isinstance(option.default, (int, float)):
        kinds = (int,) if isinstance(option.default, int) else (int, float)
        fine = isinstance(value, kinds) and not isinstance(value, bool)
        if not fine:
            return f"a {'whole ' if kinds == (int,) else ''}number is wanted"
        return None if abs(value) <= LARGEST_INT or value != value else f"expected a number up to {LARGEST_INT}"
    if not isinstance(value, str):
        return "a string is wanted"
    if option.path and not value:
        return "a path is wanted"
    if option.choices and value not in option.choices:
        return f"allowed are {', '.join(option.choices)}{near(value, option.choices)}"
    return None


def _check_numbers(values: Mapping[str, Any], sources: Mapping[str, str], problems: list[str]) -> None:
    least = {"repeat": (1, "at least one round is wanted"), "sample": (0.01, "allowed are 0.01 s and more")}
    least["lease_time"] = (0.0, "allowed are 0 s and more")
    for key, (bound, wanted) in least.items():
        # Not `<`: a number that is none is wrong too.
        if not values[key] >= bound:
            problems.append(f"{key.replace('_', '-')} = {values[key]} ({sources[key]}): {wanted}")
