"""The options of a run: one table that is also the type of their values."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .. import redaction
from ..expected import Expected
from ..problems import Problems, shown

COMMAND_LINE = "command line"
DEFAULT = "default"
QUESTIONS = {
    "converges": "each round reaches the suite's target",
    "throughput": "the throughputs are complete and plausible",
    "speedup": "many cards are faster than one card, by at least the required efficiency",
}
"""The markers of a benchmark's tests, each with its meaning."""


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


def option(group: str, help: str, metavar: str | None = None, default: Any = None, **more: Any) -> Any:  # noqa: A002
    """A field of the settings that is an option; its name is the field's."""
    return field(default=default, metadata={"option": Option("", group, help, metavar, default, **more)})


@dataclass(frozen=True)
class ClusterTable:
    """The table [cluster] as it stands in a file."""

    table: Mapping[str, Any]
    file: Path


@dataclass(frozen=True, repr=False)
class Settings:
    """Every option's value; ``sources`` says where each was given. Without a ``repr``: a value may be a password."""

    vendor: str = option(
        RUNS, "maker of the accelerators: a folder of vendors/", "NAME", "cpu", public=redaction.as_given
    )
    hw: str | None = option(RUNS, "chip of that vendor (default: its first)", "CHIP", public=redaction.as_given)
    nodes: str | None = option(
        RUNS,
        "shapes to run, hosts x cards each (default: what vendor.toml names)",
        "NxP[,NxP...]",
        public=redaction.as_given,
    )
    repeat: int = option(RUNS, "rounds of each case", "N", 1)
    case: tuple[str, ...] = option(
        RUNS,
        "one case in full, model:framework:hardware:nnodes:nproc:repeat; may be given again",
        "CASE[=DATA_DIR]",
        (),
        many=True,
        public=redaction.as_given,
    )
    data_dir: str | None = option(
        MEASURED, "folder of the training data, for every case that names none itself", "DIR", path=True
    )
    runtime: str | None = option(
        WHERE,
        "where the ranks' Python comes from (default: what vendor.toml names)",
        choices=("host", "venv", "docker"),
    )
    python: str | None = option(
        SITE, 'the interpreter of runtime "host" (default: python3 on the PATH)', "PATH", path=True
    )
    pip_source: str | None = option(
        SITE, "package index that environments are built from", "URL", public=redaction.address
    )
    launcher: str = option(SITE, "who starts the ranks of a host", default="env", choices=("env", "torchrun"))
    scale: str | None = option(
        MEASURED,
        "the real model and data, or the small version of the same code (default: what vendor.toml names)",
        choices=("reference", "small"),
    )
    synthetic: bool = option(
        MEASURED, "real shapes from a seeded generator instead of data: throughput only", default=False, flag=True
    )
    throughput_only: bool = option(
        MEASURED,
        "every case measures throughput alone, in bounded steps; with --no- every case trains to its target (default:"
        " one card at the reference scale measures throughput alone)",
        default=False,
        flag=True,
    )
    set: tuple[str, ...] = option(
        MEASURED,
        "another value for a mutable parameter; may be given again",
        "KEY=VALUE",
        (),
        many=True,
        public=redaction.assignment,
    )
    roots: tuple[str, ...] = option(
        RUNS,
        "another folder that holds vendors/ or suites/, beside the tree's own; may be given again",
        "DIR",
        (),
        many=True,
        path=True,
    )
    plan: bool = option(
        RUNS, "print what would run, where and with which values; start nothing", default=False, flag=True
    )
    reports: str = option(RESULTS, "folder of the run directories", "DIR", "reports", path=True)
    baselines: str = option(SITE, "folder of the accepted baselines", "DIR", "reports/baselines", path=True)
    accept_baseline: bool = option(
        RESULTS,
        "write what this run measures as the baseline of each case that passes, and fail nothing for the old one",
        default=False,
        flag=True,
    )
    unlike: bool = option(
        RESULTS,
        "compare with a baseline of another machine, driver or config all the same, and say so",
        default=False,
        flag=True,
    )
    lease: str | None = option(
        SITE,
        "what a case takes for itself: its devices or the whole host (default: what vendor.toml names)",
        choices=("device", "host"),
    )
    bind: str = option(
        SITE,
        "cores that a rank may use: those near its device, or one where a card is a core (auto); all of its host's"
        " (none)",
        default="auto",
        choices=("auto", "none"),
    )
    test_conf: str | None = option(RUNS, "the original's test_conf.py, used as it is", "FILE", path=True)
    cluster: str | None = option(
        WHERE,
        "machines to run on, over SSH, instead of this one; how to log in stands in [cluster] of flagperf.toml",
        "[USER@]HOST[:PORT][,...]",
        public=redaction.hosts,
    )
    cluster_conf: str | None = option(WHERE, "the original's cluster_conf.py, used as it is", "FILE", path=True)
    image: str | None = option(
        WHERE, "the container image to use, instead of building the vendor's", "IMAGE", public=redaction.image
    )
    container_opt: tuple[str, ...] = option(
        SITE,
        'other options of docker run for the ranks\' containers, as in ["--memory 64g"]',
        "OPTION",
        (),
        many=True,
        public=redaction.container_options,
    )
    shm_size: str | None = option(
        SITE,
        "size of a container's /dev/shm (default: what vendor.toml names, else 32g)",
        "SIZE",
        public=redaction.as_given,
    )
    clear_caches: bool = option(SITE, "drop the hosts' file caches before each round", default=False, flag=True)
    sample: float = option(SITE, "seconds between two samples of the devices, down to 0.01", "SECONDS", 1.0)
    lease_time: float = option(
        SITE, "seconds for which ranks on other machines go on when this one is gone", "SECONDS", 600.0
    )
    preflight: bool = option(
        RUNS, "look at every host and say what is in the way; start nothing", default=False, flag=True
    )
    resume: str | None = option(
        RUNS,
        "a run directory to go on with: take up what still runs, skip what is done, run again what failed",
        "RUN",
        path=True,
    )
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

    def as_written(self, key: str) -> str:
        """An option as it was written, for messages: ``--nodes=1x8``, or the file and what stands there."""
        option, value = _BY_KEY[key], getattr(self, key)
        public = [option.shown(each) for each in (value if isinstance(value, tuple) else (value,))]
        if self.commanded(key):
            return " ".join(f"--{option.name}={shlex.quote(each)}" for each in public)
        stored = public if option.many else value if option.may_be_stored(value) else public[0]
        return f"{self.sources[key]}: {option.name} = {shown(stored)}"


OPTIONS: tuple[Option, ...] = tuple(
    replace(each.metadata["option"], name=each.name.replace("_", "-"))
    for each in fields(Settings)
    if "option" in each.metadata
)
_BY_KEY = {option.key: option for option in OPTIONS}
COMMAND_LINE_OPTIONS = tuple(option for option in OPTIONS if option.group != SITE)
RENAMED = {"hosts": "cluster"}
"""Former names of options, each with the name that replaced it."""
