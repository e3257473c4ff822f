"""Read and write the directory of a round: its plan, its record and its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from flagperf_driver.layout import CASE, rank_exit

from . import layout, type_check
from .files import FormatError, check_schema, read, write, writing
from .plan import LINK, StoredHost, StoredPlan, read_plan

SCHEMA = 1
_PLACES = {"log_dir": str, "code_root": str}


@dataclass(frozen=True)
class RoundFault:
    """A fault of a round; the first one causes the others.

    ``kind``: crash, killed, hang, timeout, init_timeout, unfinished, no_log, interrupted, no_end, ...
    """

    kind: str
    host: str | None = None
    rank: int | None = None
    sentence: str = ""
    last_lines: tuple[str, ...] = ()


def cause_of_interrupt(error: BaseException) -> str:
    """Return what ended a round before its end, for its fault."""
    return "Ctrl-C or a signal" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__} {error}".strip()


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended, as its agent reported."""

    rank: int
    code: int | None = None
    signal: str | None = None
    cause: str | None = None

    @property
    def is_clean(self) -> bool:
        return (self.code, self.signal, self.cause) == (0, None, None)

    def __str__(self) -> str:
        if self.signal:
            return self.signal
        return "exit code unknown" if self.code is None else f"exit code {self.code}"


@dataclass(frozen=True)
class HostEnd:
    """How the ranks of a host ended."""

    noderank: int
    name: str = ""
    ranks: tuple[RankEnd, ...] = ()


@dataclass(frozen=True)
class MissingLogs:
    """Logs that are still on a host, or lost."""

    host: str
    noderank: int
    log_dir: str
    why: str
    gone: bool = False


@dataclass(frozen=True)
class HostSilence:
    """A time in which a host did not answer, by this machine's clock."""

    host: str
    from_ms: int
    until_ms: int


@dataclass(frozen=True)
class StruckFault:
    """A fault of --drill, and when it struck and was noticed, by this machine's clock."""

    kind: str
    host: str
    rank: int | None
    step: int
    struck_ms: int
    noticed_ms: int | None = None

    @property
    def what(self) -> str:
        if self.kind == LINK:
            return f"the link to {self.host} was cut"
        return f"{self.host} was lost" if self.rank is None else f"rank {self.rank} on {self.host} was killed"


@dataclass(frozen=True)
class RoundRecord:
    """How a round ended: the contents of round.json."""

    state: str  # finished, failed or interrupted
    fault: RoundFault | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    seconds: float | None = None
    """Duration by the monotonic clock; None if another controller started the round."""
    hosts: tuple[HostEnd, ...] = ()
    swept: tuple[str, ...] = ()
    missing: tuple[MissingLogs, ...] = ()
    warnings: tuple[str, ...] = ()
    silences: tuple[HostSilence, ...] = ()
    """Of hosts that were lost and came back."""
    drill: tuple[StruckFault, ...] = ()

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str) -> RoundRecord:
        check_schema(body, SCHEMA, where)
        return type_check.typed(cls, {name: value for name, value in body.items() if value is not None}, where)


@dataclass(frozen=True)
class RoundDir:
    """A round's directory. Reading raises FormatError, writing WriteError."""

    path: Path

    @property
    def label(self) -> str:
        """The folders of the case and the round, for messages."""
        return f"{self.path.parent.name} {self.path.name}"

    @property
    def is_planned(self) -> bool:
        """Return True if the round was started."""
        return (self.path / layout.PLAN).is_file()

    @property
    def has_record(self) -> bool:
        """Return True if a controller wrote how the round ended, readable or not."""
        return (self.path / layout.RECORD).exists()

    @property
    def has_outcome(self) -> bool:
        return (self.path / layout.OUTCOME).exists()

    @property
    def has_ended(self) -> bool:
        """Return True if the round ended; otherwise it may still run."""
        return self.has_record or self.has_outcome

    @property
    def owes_logs(self) -> bool:
        """Return True if a host still has logs of this round that were not collected."""
        try:
            return any(not missing.gone for missing in self.read_record().missing)
        except FormatError:
            return False

    def read_plan(self) -> StoredPlan:
        return read_plan(self.path / layout.PLAN)

    def read_hosts(self) -> tuple[StoredHost, ...]:
        """Return the hosts with their log and code folders; raise FormatError if the plan has no such folder."""
        hosts = self.read_plan().hosts
        for host in hosts:
            places = {"log_dir": host.log_dir or None, "code_root": host.code_root or None}
            type_check.check(places, _PLACES, f"{self.path / layout.PLAN}: hosts")
        return hosts

    def read_record(self) -> RoundRecord:
        path = self.path / layout.RECORD
        return RoundRecord.from_json(read(path), str(path))

    def read_rank_end(self, folder: str, rank: int) -> RankEnd:
        """Return how a rank ended, as the agent wrote it into the folder of its host."""
        path = self.path / folder / rank_exit(rank)
        return type_check.typed(RankEnd, {**read(path), "rank": rank}, str(path))

    def write_inputs(self, plan: Mapping[str, Any], case: Mapping[str, Any]) -> None:
        """Write the case and the plan before the start; the plan comes last, since it marks the round as started."""
        write(self.path / CASE, case)
        write(self.path / layout.PLAN, plan)

    def write_record(self, record: RoundRecord) -> None:
        write(self.path / layout.RECORD, {"schema": SCHEMA, **vars(record)})

    def write_outcome(self, outcome: Mapping[str, Any]) -> Path:
        path = self.path / layout.OUTCOME
        write(path, outcome)
        return path

    def write_missing(self, missing: Sequence[MissingLogs], warnings: Iterable[str] = ()) -> None:
        """Replace the list of missing logs in the record, and add warnings."""
        record = self.read_record()
        self.write_record(replace(record, missing=tuple(missing), warnings=(*record.warnings, *warnings)))

    def move_aside(self) -> None:
        """Rename the folder of a failed round, and that of its replay, so that the round can run again."""
        target = self.path.with_name(layout.failed_folder(len(earlier_tries(self)) + 1, self.path.name))
        with writing(target):
            self.path.rename(target)
            with suppress(FileNotFoundError):
                replay_of(self.path).path.rename(replay_of(target).path)

    def take_back(self) -> None:
        """Undo the last ``move_aside``, unless another try has begun."""
        tries = earlier_tries(self)
        if tries and not self.is_planned:
            with suppress(OSError):  # the folder contains files of another try
                tries[-1].path.rename(self.path)


def replay_of(round_dir: Path) -> RoundDir:
    """Return the directory of the process that repeats segments of a round's training."""
    return RoundDir(round_dir.with_name(f"{round_dir.name}_replay"))


def earlier_tries(directory: RoundDir) -> list[RoundDir]:
    """Return the tries that were moved aside before this try of a round, the first one first."""
    path, last = directory.path, layout.last_try(directory.path.name)
    count = len(list(path.parent.glob(layout.failed_folder("*", last))))
    names = (layout.failed_folder(number, last) for number in range(1, 1 + count))
    return [RoundDir(path.with_name(name)) for name in takewhile(lambda name: name != path.name, names)]


def first_training(directory: RoundDir) -> str:
    """Return the training of the round's first try that was moved aside; empty without one."""
    for first in earlier_tries(directory):
        with suppress(FormatError):
            return first.read_plan().training
    return ""


def begun_ms(directory: RoundDir) -> int:
    """Return when the plan of a round was written, in ms."""
    return int((directory.path / layout.PLAN).stat().st_mtime * 1000)


def has_readable_record(directory: RoundDir) -> bool:
    """Return True if a controller stored how the round ended, in a readable file."""
    try:
        directory.read_record()
    except FormatError:
        return False
    return True


def rounds_of(case_dir: Path) -> list[RoundDir]:
    """Return the rounds of a case in order, without one-card rounds and failed rounds."""
    numbers = ((layout.round_number(path.name), path) for path in case_dir.glob("round*"))
    return [RoundDir(path) for _, path in sorted((number, path) for number, path in numbers if number is not None)]


def has_rounds(run_dir: Path) -> bool:
    """Return True if a folder contains a started round, as the folder of a run does."""
    return any(run_dir.glob(f"*/round*/{layout.PLAN}"))


def runs_beside(run_dir: Path) -> list[str]:
    """Return the folders of this run and of the runs beside it."""
    return [str(run_dir), *(str(path) for path in run_dir.parent.iterdir() if path != run_dir and has_rounds(path))]


def case_folders(run_dir: Path) -> list[Path]:
    """Return the folders of a run's cases that have a started round."""
    return sorted({path.parent.parent for path in run_dir.glob(f"*/round*/{layout.PLAN}")})


def planned_rounds(run_dir: Path) -> list[RoundDir]:
    """Return all started rounds of a run, including one-card rounds and failed rounds."""
    return [RoundDir(path.parent) for path in sorted(run_dir.glob(f"*/*/{layout.PLAN}"))]
