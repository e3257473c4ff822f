"""The directory of a round: the one reader and writer of its plan, its record and its outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import layout, typed
from .files import FormatError, check_schema, listed, need, read, write, writing
from .plan import StoredHost, StoredPlan, read_plan

SCHEMA = 1


@dataclass(frozen=True)
class RoundFault:
    """The first thing that went wrong; all later ones follow from it."""

    kind: str
    host: str | None = None
    rank: int | None = None
    sentence: str = ""
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended, as its agent saw it."""

    rank: int
    code: int | None = None
    signal: str | None = None
    cause: str | None = None


@dataclass(frozen=True)
class HostEnd:
    """How the ranks of a host ended."""

    noderank: int
    name: str = ""
    ranks: tuple[RankEnd, ...] = ()


@dataclass(frozen=True)
class MissingLogs:
    """Logs that are still on a host, or gone."""

    host: str
    noderank: int
    log_dir: str
    why: str
    gone: bool = False


@dataclass(frozen=True)
class RoundRecord:
    """How a round ended: what round.json says."""

    state: str  # finished, failed or interrupted
    fault: RoundFault | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    seconds: float | None = None
    """From start to end, by a clock that is never set; None where another controller started the round."""
    hosts: tuple[HostEnd, ...] = ()
    swept: tuple[str, ...] = ()
    missing: tuple[MissingLogs, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str) -> RoundRecord:
        check_schema(body, SCHEMA, where)
        need(body, {"state": str}, where)
        record = cls(
            **{
                **_known(cls, body),
                "fault": _fault(body.get("fault"), where),
                "hosts": tuple(_host_end(item, where) for item in _listed(body, "hosts", {"noderank": int}, where)),
                "missing": tuple(
                    MissingLogs(**_known(MissingLogs, item))
                    for item in _listed(
                        body, "missing", {"host": str, "noderank": int, "log_dir": str, "why": str}, where
                    )
                ),
                **{name: _tuple(body.get(name, [])) for name in ("swept", "warnings")},
            }
        )
        typed.check(record, where)
        return record


@dataclass(frozen=True)
class RoundDir:
    """A round's directory. Reading raises FormatError, writing WriteError."""

    path: Path

    @property
    def label(self) -> str:
        """The case's folder and the round's, for messages."""
        return f"{self.path.parent.name} {self.path.name}"

    @property
    def is_planned(self) -> bool:
        """Whether the round was begun."""
        return (self.path / layout.PLAN).is_file()

    @property
    def has_record(self) -> bool:
        """Whether a controller wrote how the round ended, readable or not."""
        return (self.path / layout.RECORD).exists()

    @property
    def has_outcome(self) -> bool:
        return (self.path / layout.OUTCOME).exists()

    @property
    def has_ended(self) -> bool:
        """Whether the round ended in some way; without these files it may still run."""
        return self.has_record or self.has_outcome

    @property
    def owes_logs(self) -> bool:
        """Whether a host still has logs of this round that are not here."""
        try:
            return any(not missing.gone for missing in self.read_record().missing)
        except FormatError:
            return False

    def read_plan(self) -> StoredPlan:
        return read_plan(self.path / layout.PLAN)

    def read_hosts(self) -> tuple[StoredHost, ...]:
        """Return where each host has its logs and its code; FormatError where the plan does not say."""
        hosts = self.read_plan().hosts
        for host in hosts:
            places = {"log_dir": host.log_dir or None, "code_root": host.code_root or None}
            need(places, {"log_dir": str, "code_root": str}, f"{self.path / layout.PLAN}: hosts")
        return hosts

    def read_record(self) -> RoundRecord:
        path = self.path / layout.RECORD
        return RoundRecord.from_json(read(path), str(path))

    def read_rank_end(self, folder: str, rank: int) -> RankEnd:
        """Return how a rank ended, as the agent wrote it into the folder of its host."""
        path = self.path / folder / layout.rank_exit(rank)
        end = RankEnd(**{**_known(RankEnd, read(path)), "rank": rank})
        typed.check(end, str(path))
        return end

    def write_inputs(self, plan: Mapping[str, Any], case: Mapping[str, Any]) -> None:
        """Write what the round does before it starts; the plan comes last, since it marks the round as begun."""
        write(self.path / layout.CASE, case)
        write(self.path / layout.PLAN, plan)

    def write_record(self, record: RoundRecord) -> None:
        write(self.path / layout.RECORD, record.to_json())

    def write_outcome(self, outcome: Mapping[str, Any]) -> Path:
        path = self.path / layout.OUTCOME
        write(path, outcome)
        return path

    def write_missing(self, missing: Sequence[MissingLogs], warnings: Iterable[str] = ()) -> None:
        """Replace the list of missing logs in the record, and add warnings."""
        record = self.read_record()
        self.write_record(replace(record, missing=tuple(missing), warnings=(*record.warnings, *warnings)))

    def move_aside(self) -> None:
        """Make room for another try of the round; nothing of this one is lost."""
        taken = len(list(self.path.parent.glob(layout.failed_folder("*", self.path.name))))
        aside = self.path.with_name(layout.failed_folder(taken + 1, self.path.name))
        with writing(aside):
            self.path.rename(aside)


def begun_ms(directory: RoundDir) -> int:
    """When the plan of a round was written."""
    return int((directory.path / layout.PLAN).stat().st_mtime * 1000)


def has_readable_record(directory: RoundDir) -> bool:
    """Whether a controller took the round to its end, and wrote so."""
    try:
        directory.read_record()
    except FormatError:
        return False
    return True


def rounds_of(case_dir: Path) -> list[RoundDir]:
    """The rounds of a case in order, without one-card rounds and failed ones."""
    numbers = ((layout.round_number(path.name), path) for path in case_dir.glob("round*"))
    return [RoundDir(path) for _, path in sorted((number, path) for number, path in numbers if number is not None)]


def has_rounds(run_dir: Path) -> bool:
    """Whether a folder is a run's: a round of a case was begun there."""
    return any(run_dir.glob(f"*/round*/{layout.PLAN}"))


def case_folders(run_dir: Path) -> list[Path]:
    """The folders of a run's cases: those with a round that was begun."""
    return sorted({path.parent.parent for path in run_dir.glob(f"*/round*/{layout.PLAN}")})


def planned_rounds(run_dir: Path) -> list[RoundDir]:
    """Every round of a run that was begun, one-card rounds and failed ones too."""
    return [RoundDir(path.parent) for path in sorted(run_dir.glob(f"*/*/{layout.PLAN}"))]


def _known(cls: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: body[one.name] for one in dataclasses.fields(cls) if one.name in body}


def _listed(body: Mapping[str, Any], key: str, kinds: Mapping[str, type], where: str) -> list[dict[str, Any]]:
    return listed(body, key, kinds, where) if body.get(key) is not None else []


def _fault(body: Any, where: str) -> RoundFault | None:
    if body is None:
        return None
    need({"fault": body}, {"fault": dict}, where)
    need(body, {"kind": str}, f"{where}: fault")
    return RoundFault(**{**_known(RoundFault, body), "last_lines": _tuple(body.get("last_lines") or [])})


def _host_end(body: Mapping[str, Any], where: str) -> HostEnd:
    ranks = [RankEnd(**_known(RankEnd, item)) for item in _listed(body, "ranks", {"rank": int}, f"{where}: hosts")]
    return HostEnd(**{**_known(HostEnd, body), "ranks": tuple(ranks)})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
