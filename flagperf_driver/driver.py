"""The framework-neutral part of a rank; a rank's program imports this module first.

Inside a round (``FLAGPERF_CASE`` is set) the import prepares the process: it records when the process started,
redirects the output to the rank's log, prints stack traces on a crash and on SIGUSR1, writes INIT_START, and writes
FAILED for an uncaught exception. Outside a round the import changes nothing.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Iterator, Mapping, NoReturn

from flagperf_driver import events, layout
from flagperf_driver.extern import suggest
from flagperf_driver.heartbeat import Heartbeat
from flagperf_driver.perflog import Names, PerfLog
from flagperf_driver.target import Target

SCHEMA = 1


class DriverError(ValueError):
    """All problems of a round's case.json or environment."""


# -- the clock ---------------------------------------------------------------------------------------------


def process_age() -> float:
    """Return the seconds since the kernel started this process, before the interpreter started; 0 if unknown."""
    try:
        after_name = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        ticks = int(after_name[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
    # In a time namespace the two clocks can differ.
    return age if 0.0 <= age < 3600.0 else 0.0


STARTED = time.monotonic() - process_age()
"""The start of this process on the monotonic clock."""


# -- the case ----------------------------------------------------------------------------------------------


class Config:
    """The resolved config with its keys as read-only attributes; an unknown name raises an error with similar names."""

    __slots__ = ("_values",)
    _values: dict[str, Any]

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", dict(values))

    def __getattr__(self, name: str) -> Any:
        values = object.__getattribute__(self, "_values")
        if name in values:
            return values[name]
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"the config has no {name!r}; {suggest(name, values)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"the config is frozen; cannot set {name} = {value!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the config is frozen; cannot delete {name}")

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __dir__(self) -> list[str]:
        return sorted(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, Any]]]:
        return Config, (self._values,)

    def __repr__(self) -> str:
        return "Config({})".format(", ".join("{}={!r}".format(*item) for item in self._values.items()))

    def as_dict(self) -> dict[str, Any]:
        """Return a copy of all values."""
        return dict(self._values)


@dataclass(frozen=True)
class RunCase:
    """The content of case.json: all settings of a rank, resolved by the harness."""

    case: str
    model: str
    framework: str
    vendor: str
    hardware: str
    nnodes: int
    nproc: int
    round: int
    token: str
    training: str
    """The name of the training, which stays the same when the round is run again to continue it."""
    seed: int
    scale: str
    synthetic: bool
    throughput_only: bool
    metric: Target
    sample_unit: str
    device: str
    backend: str
    modules: tuple[str, ...]
    device_module: Path | None
    data_dir: Path | None
    extern: Path | None
    config: Config
    peaks: Mapping[str, float] = field(default_factory=dict)
    """The declared peaks of the chip in FLOP/s and B/s, by their keys in vendor.toml, e.g. peak_tflops.bf16."""
    replay: Mapping[str, Any] = field(default_factory=dict)
    """``states``: the folder for the states of the training; in the process that repeats it also ``segments``: the
    first and last saved step of each, ``budget``: the steps to repeat, ``final``: the last step of the training, and
    ``orders``: the numbers that the data of its epochs follow from. Empty without a replay."""

    @property
    def given(self) -> Mapping[str, Any]:
        """The values that identify this round; INIT_END repeats them."""
        return {"case": self.case, "round": self.round, "seed": self.seed, "token": self.token}

    @property
    def names(self) -> Names:
        """The original's names of this training's logged values."""
        return Names(self.metric.name, self.metric.original_name, self.sample_unit)

    @classmethod
    def load(cls, path: Path) -> RunCase:
        return cls.from_json(_read_json(path), str(path))

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str = "case.json") -> RunCase:
        # An engine that continues no training gives only the token.
        body = {"training": body.get("token"), "peaks": {}, "replay": {}, **body}
        problems = _missing(body, [item.name for item in fields(cls)], where)
        if body.get("schema") != SCHEMA:
            problems.append("{}: schema is {!r}; expected {}".format(where, body.get("schema"), SCHEMA))
        metric = body.get("metric")
        if isinstance(metric, dict):
            problems += _missing(metric, ["name", "direction", "unit", "target"], where + ", metric")
        elif "metric" in body:
            problems.append(f"{where}: metric must be an object; got {metric!r}")
        if problems:
            raise DriverError("\n".join(problems))
        assert isinstance(metric, dict)
        values = {item.name: body[item.name] for item in fields(cls)}
        metric = {**metric, "value": metric["target"]}
        values["metric"] = Target(**{item.name: metric[item.name] for item in fields(Target) if item.name in metric})
        values["modules"] = tuple(values["modules"])
        for name in ("data_dir", "device_module", "extern"):
            values[name] = Path(values[name]) if values[name] else None
        values["config"] = Config(values["config"])
        return cls(**values)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise DriverError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DriverError(f"{path}: invalid JSON: {error}") from error
    if not isinstance(body, dict):
        raise DriverError(f"{path}: expected a JSON object; got {type(body).__name__}")
    return body


def _missing(body: Mapping[str, Any], names: list[str], where: str) -> list[str]:
    return [f"{where}: {name!r} is missing" for name in names if name not in body]


@dataclass(frozen=True)
class World:
    """The place of this process among all ranks; the only rank if the environment variables are not set."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> World:
        values = {}
        problems = []
        for item in fields(cls):
            text = environment.get(item.name.upper(), str(item.default))
            if text.isdigit():
                values[item.name] = int(text)
            else:
                problems.append(f"environment variable {item.name.upper()}={text!r} must be a number, at least 0")
        if problems:
            raise DriverError("\n".join(problems))
        return cls(**values)


# -- the rank ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    """One process of a training: its case, its place among the ranks, its log and its heartbeat."""

    case: RunCase
    world: World
    log: PerfLog
    heartbeat: Heartbeat
    log_dir: Path | None = None
    started: float = field(default=STARTED)

    @property
    def config(self) -> Config:
        return self.case.config

    def age(self) -> float:
        """Return the seconds since this process started; end-to-end times are measured so."""
        return time.monotonic() - self.started


_log: PerfLog | None = None


_CODE = str(Path(__file__).resolve().parents[1])


def start() -> Rank:
    """Create this process's rank from the environment."""
    path = os.environ.get("FLAGPERF_CASE")
    if not path:
        raise DriverError("FLAGPERF_CASE is not set; expected the path of the round's case.json")
    world = World.from_environment(os.environ)
    log_dir = _log_dir(os.environ)
    progress = log_dir / f"rank{world.rank}.progress" if log_dir else None
    log = _log if _log is not None else PerfLog(world.rank)
    case = RunCase.load(Path(path))
    log.given, log.names = case.given, case.names
    return Rank(case, world, log, Heartbeat(progress), log_dir)


def run(main: Callable[[Rank], None]) -> None:
    """Run this process's rank. Log an error as FAILED, print it on stderr and exit with 1."""
    try:
        main(start())
    except SystemExit as error:
        if error.code not in (None, 0):
            _fail(error)
        raise
    except BaseException as error:  # log every kind of error
        _fail(error)
        traceback.print_exc()
        _exit_now(1)


def _fail(error: BaseException) -> None:
    if _log is not None:
        # Paths are relative to the source tree: the absolute path is this host's copy of it.
        text = f"{error}{_vendor_line(error)}".replace(f"{_CODE}/", "")
        _log(events.FAILED, {"type": type(error).__name__, "error": text})


def _vendor_line(error: BaseException | None) -> str:
    """Return the innermost line of a vendor's code in the traceback of the error or of its causes, "" without one."""
    line = ""
    while error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename.startswith(f"{_CODE}/vendors/"):
                line = f" ({frame.filename}:{frame.lineno}, in {frame.name})"
        error = error.__cause__
    return line


def _exit_now(code: int) -> NoReturn:
    """Exit without cleanup: a broken process group or loader threads can delay a normal exit for minutes."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log an uncaught exception, e.g. of an import that failed before ``run``."""
    _fail(error)
    sys.__excepthook__(kind, error, trace)


def _log_dir(environment: Mapping[str, str]) -> Path | None:
    path = environment.get("FLAGPERF_LOG_DIR")
    return Path(path) if path else None


def _redirect(path: Path) -> None:
    """Redirect stdout and stderr to ``path``, unless the agent has done so."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        for standard in (1, 2):
            if not os.path.sameopenfile(handle, standard):
                os.dup2(handle, standard)
    finally:
        os.close(handle)


def _prepare_process() -> None:
    global _log
    world = World.from_environment(os.environ)
    log_dir = _log_dir(os.environ)
    if log_dir is not None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        _redirect(log_dir / layout.rank_log(world.rank))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # With the default action SIGTERM ends even a busy rank; the parent may have set it to be ignored.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGUSR1})
    _log = PerfLog(world.rank)
    _log(events.INIT_START)
    sys.excepthook = _log_uncaught


if os.environ.get("FLAGPERF_CASE"):
    _prepare_process()
