"""The table of all options, which is also the type of their values."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from flagperf_driver.node.logs.whole_numbers import LARGEST_INT
from flagperf_driver.node.sampling.schedule import DEVICES_S

from .. import redaction
from ..expected import Expected
from ..problems import Problems, shown
from ..stored.plan import Price
from ..typed import Rule

_STRINGS = Annotated[list[str], Rule("a list of strings", lambda _: True)]
# Not `<=`, which is false for NaN: the least value of the option refuses that.
_NUMBER = Annotated[float, Rule(f"a number up to {LARGEST_INT}", lambda number: not abs(number) > LARGEST_INT)]
COMMAND_LINE = "command line"
DEFAULT = "default"


class SettingsError(Problems):
    """Invalid options or an invalid settings file."""


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
"""The group of the options that describe a site: keys of the settings file that have no command line option."""


@dataclass(frozen=True)
class Option:
    """One option: ``name`` in the settings file and, unless its group is SITE, ``--name`` on the command line.

    A flag also has ``--no-name``. A relative ``path`` starts at the working directory, or at the folder of the settings
    file. With ``many``, values of the command line replace those of the file; only ``roots`` are added to them.

    ``public`` returns the part of a value that may be stored and shown; the default hides everything.
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
    alone: str = ""
    """The value of the option without a value; each other value is written with ``=``."""
    public: Callable[[str], str] = redaction.hidden
    least: float | None = None
    """The least allowed number."""

    def shown(self, value: object) -> str:
        """Return the part of a value that may be stored and shown."""
        if self.flag or self.path or self.choices or isinstance(self.default, (int, float)):
            return str(value)
        return self.public(str(value))

    def may_be_stored(self, value: object) -> bool:
        """Return True if no part of a value is secret."""
        words = value if isinstance(value, (tuple, list)) else (value,)
        return all(isinstance(word, (int, float)) or self.shown(word) == str(word) for word in words)

    @property
    def key(self) -> str:
        """The name in Python code."""
        return self.name.replace("-", "_")

    @cached_property
    def kind(self) -> Any:
        """The kind of a value in the settings file, as ``typed`` describes it."""
        if self.flag or self.many:
            return bool if self.flag else _STRINGS
        return Literal[self.choices] if self.choices else {int: int, float: _NUMBER}.get(type(self.default), str)


def option(group: str, help: str, metavar: str | None = None, default: Any = None, **more: Any) -> Any:  # noqa: A002
    """Define a field of the settings as an option with the field's name."""
    return field(default=default, metadata={"option": Option("", group, help, metavar, default, **more)})


@dataclass(frozen=True)
class SiteTable:
    """A table of a settings file, as [cluster], not yet checked."""

    table: Mapping[str, Any]
    file: Path


@dataclass(frozen=True, repr=False)
class Settings:
    """The values of all options; ``sources`` has the source of each. No ``repr``, since a value may be a password."""

    vendor: str = option(
        RUNS, "vendor of the accelerators, a folder in vendors/", "NAME", "cpu", public=redaction.as_given
    )
    hw: str | None = option(RUNS, "chip of the vendor (default: its first chip)", "CHIP", public=redaction.as_given)
    nodes: str | None = option(
        RUNS,
        "shapes to run, hosts x cards per host (default: as in vendor.toml)",
        "NxP[,NxP...]",
        public=redaction.as_given,
    )
    repeat: int = option(RUNS, "rounds of each case", "N", 1, least=1)
    case: tuple[str, ...] = option(
        RUNS,
        "run this case, model:framework:hardware:nnodes:nproc:repeat; may be repeated",
        "CASE[=DATA_DIR]",
        (),
        many=True,
        public=redaction.as_given,
    )
    data_dir: str | None = option(
        MEASURED, "folder of the training data, for cases without an own folder", "DIR", path=True
    )
    runtime: str | None = option(
        WHERE,
        "source of the ranks' Python (default: as in vendor.toml, where venv means auto on this machine); auto: venv,"
        " or host if no index and no folder of wheels serves its packages",
        choices=("auto", "host", "venv", "docker", "apptainer", "pyxis"),
    )
    python: str | None = option(
        WHERE, 'the interpreter of runtime "host" (default: python3 on the PATH)', "PATH", path=True
    )
    pip_source: str | None = option(SITE, "package index to build environments from", "URL", public=redaction.address)
    wheels: str | None = option(
        WHERE,
        "folder of wheels to build environments from, instead of a package index; flagperf wheels fills it",
        "DIR",
        path=True,
    )
    scale: str | None = option(
        MEASURED,
        "the full model and data, or a small version of the same code (default: as in vendor.toml)",
        choices=("reference", "small"),
    )
    synthetic: bool = option(
        MEASURED,
        "generate data of real shapes; measures throughput only",
        default=False,
        flag=True,
    )
    throughput_only: bool = option(
        MEASURED,
        "measure only throughput, with a limited number of steps; with --no- all cases train to their targets"
        " (default: only one card at the reference scale measures throughput only)",
        default=False,
        flag=True,
    )
    set: tuple[str, ...] = option(
        MEASURED,
        "set a mutable parameter of the config; may be repeated",
        "KEY=VALUE",
        (),
        many=True,
        public=redaction.assignment,
    )
    each: tuple[str, ...] = option(
        MEASURED,
        "run each case once with each of these values of a mutable parameter, and compare them; may be repeated, for"
        " all combinations",
        "KEY=VALUE[,VALUE...]",
        (),
        many=True,
        public=redaction.assignment,
    )
    roots: tuple[str, ...] = option(
        RUNS,
        "another folder with vendors/ or suites/, in addition to the tree's; may be repeated",
        "DIR",
        (),
        many=True,
        path=True,
    )
    plan: bool = option(
        RUNS, "print the cases, hosts and config values of the run; start nothing", default=False, flag=True
    )
    reports: str = option(RESULTS, "folder of the run directories", "DIR", "reports", path=True)
    baselines: str = option(SITE, "folder of the accepted baselines", "DIR", "reports/baselines", path=True)
    ignore_differences: bool = option(
        RESULTS,
        "also compare with a baseline of another machine, driver or config, and report the differences",
        default=False,
        flag=True,
    )
    lease: str | None = option(
        SITE,
        "what a case reserves: its devices or whole hosts (default: as in vendor.toml)",
        choices=("device", "host"),
    )
    bind: str = option(
        SITE,
        "cores of each rank: the cores near its device, or one core where a card is a core (auto); all cores of the"
        " host (none)",
        default="auto",
        choices=("auto", "none"),
    )
    test_conf: str | None = option(RUNS, "use this test_conf.py of FlagPerf", "FILE", path=True)
    cluster: str | None = option(
        WHERE,
        "hosts to run on over SSH, instead of this machine; [cluster] of flagperf.toml sets how to log in; or slurm:"
        " the nodes of the Slurm job that the run is in, or of one job for each case",
        "[USER@]HOST[:PORT][,...]|slurm",
        public=redaction.hosts,
    )
    cluster_conf: str | None = option(WHERE, "use this cluster_conf.py of FlagPerf", "FILE", path=True)
    engine: str = option(
        WHERE,
        "what runs the rounds: agents on this machine or the hosts of --cluster (default), or an engine of an installed"
        " plugin",
        "NAME",
        "agents",
        public=redaction.as_given,
    )
    image: str | None = option(
        WHERE, "container image to use instead of building the vendor's image", "IMAGE", public=redaction.image
    )
    container_opt: tuple[str, ...] = option(
        SITE,
        'more options of docker run for the ranks\' containers, as in ["--memory 64g"]',
        "OPTION",
        (),
        many=True,
        public=redaction.container_options,
    )
    shm_size: str | None = option(
        SITE,
        "size of a container's /dev/shm, as --shm-size of docker run (default: 32g)",
        "SIZE",
        public=redaction.as_given,
    )
    clear_caches: bool = option(SITE, "drop the hosts' file caches before each round", default=False, flag=True)
    sample: float = option(
        SITE, "seconds between two samples of the devices, at least 0.01", "SECONDS", DEVICES_S, least=0.01
    )
    lease_time: float = option(
        SITE, "seconds after which ranks on other hosts stop if this machine does not answer", "SECONDS", 600.0, least=0
    )
    restart_wait: float = option(
        SITE, "seconds for which another start of --restarts waits for its hosts", "SECONDS", 1800.0, least=0
    )
    fewest_hosts: int = option(
        SITE, "after this wait a training goes on with fewer hosts, at least so many; 0: never", "N", 0, least=0
    )
    preflight: str | None = option(
        RUNS,
        "check every host and report problems; start nothing. With =measure, measure all hosts for some seconds before"
        " the first case, and start nothing if a device is slow; with =leave-out, run without its host",
        choices=("check", "measure", "leave-out"),
        alone="check",
    )
    restarts: int = option(
        RUNS,
        "start a training again at most N times from its last checkpoint, after a lost host, a killed or hanging rank"
        " or a device error (docs/days.md)",
        "N",
        0,
        least=0,
    )
    replay: bool = option(
        RUNS,
        "after each training, repeat a drawn segment in a clean process and compare; always with a vendor's code",
        default=False,
        flag=True,
    )
    drill: str | None = option(
        RUNS,
        "strike each training with these faults (rank, host, link) once it has settled, and measure what they cost;"
        " needs --restarts",
        "FAULT[,FAULT...]",
        public=redaction.as_given,
    )
    drill_here: bool = option(
        RUNS, "allow --drill on hosts whose cores or devices others use", default=False, flag=True
    )
    min_goodput: float = option(
        RESULTS,
        "fail a training with --restarts or --drill if less than this share of its time became progress",
        "SHARE",
        0.0,
        least=0,
    )
    resume: str | None = option(
        RUNS,
        "continue this run: wait for running rounds, skip finished rounds, repeat failed rounds",
        "RUN",
        path=True,
    )
    price: Price | None = None
    cluster_table: SiteTable | None = None
    engine_tables: Mapping[str, SiteTable] = field(default_factory=dict)
    """The tables [engines.NAME], for the engines of plugins; [slurm] is that of the engine slurm."""
    expected: tuple[Expected, ...] = ()
    expected_in: str = ""
    """The file that contains the tables of ``expected``."""
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_default(self) -> bool:
        """Return True if neither the command line nor a file sets any option."""
        return set(self.sources.values()) == {DEFAULT}

    @property
    def starts_nothing(self) -> bool:
        return self.plan or self.preflight == "check"

    def given(self, key: str) -> bool:
        """Return True if the command line or a file sets this option."""
        return self.sources[key] != DEFAULT

    def commanded(self, key: str) -> bool:
        """Return True if the command line sets this option."""
        return self.sources[key] == COMMAND_LINE

    def as_written(self, key: str) -> str:
        """Return an option as written, for messages: ``--nodes=1x8``, or the file with its key and value."""
        option, value = _BY_KEY[key], getattr(self, key)
        public = [option.shown(word) for word in (value if isinstance(value, tuple) else (value,))]
        if self.commanded(key):
            return " ".join(f"--{option.name}={shlex.quote(word)}" for word in public)
        stored = public if option.many else value if option.may_be_stored(value) else public[0]
        return f"{self.sources[key]}: {option.name} = {shown(stored)}"


OPTIONS: tuple[Option, ...] = tuple(
    replace(attribute.metadata["option"], name=attribute.name.replace("_", "-"))
    for attribute in fields(Settings)
    if "option" in attribute.metadata
)
_BY_KEY = {option.key: option for option in OPTIONS}
COMMAND_LINE_OPTIONS = tuple(option for option in OPTIONS if option.group != SITE)
