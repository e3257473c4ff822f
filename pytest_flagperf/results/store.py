"""Where results lie: outcome.json per round, verdicts per case, results.json and results.csv per run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flagperf_driver.perflog import number
from pytest_flagperf import case as case_names
from pytest_flagperf.results.columns import write_csv
from pytest_flagperf.results.comparing import statistics
from pytest_flagperf.results.measured import machine, vendor_code
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import UNREADABLE, Outcome, unreadable
from pytest_flagperf.results.runs import newest_first
from pytest_flagperf.results.verdicts import OneCard, Verdict, has_converged
from pytest_flagperf.results.verdicts.speedup import format_speedup, p_cores
from pytest_flagperf.stored import FormatError, files, layout, type_check
from pytest_flagperf.stored.round import RoundDir, case_folders, rounds_of

SCHEMA = 1


@dataclass(frozen=True)
class RunInfo:
    """``unsupported``: one sentence for each suite without a config for what was asked."""

    command: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    started_ms: int | None = None
    ended_ms: int | None = None
    exit_status: int | None = None
    selected: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    controller: Mapping[str, float] = field(default_factory=dict)
    """Of the machine that ran pytest, before the run, and of pytest itself at its end."""


@dataclass(frozen=True)
class CaseResult:
    """A case's rounds in order, and the verdicts by the name of the test that gave them."""

    case: str
    outcomes: tuple[Outcome, ...] = ()
    verdicts: Mapping[str, tuple[Verdict, ...]] = field(default_factory=dict)
    one_card: OneCard | None = None

    @property
    def without_repeat(self) -> str:
        """The name of the case without the repeat, the same for other numbers of rounds."""
        return case_names.without_repeat(self.case)

    @property
    def repeat(self) -> int:
        """How many rounds the case has by its name."""
        case = case_names.case_of(self.case)
        return case.repeat if case else 1

    @property
    def speedup(self) -> float | None:
        """The median p_core of the rounds that ended well over one card's, as judged; None where one is missing."""
        if self.one_card is None:
            return None
        values = p_cores((outcome for outcome in self.outcomes if outcome.ok), self.one_card)
        many, one = statistics.summarize(values).median, statistics.finite([self.one_card.p_core])
        return many / one[0] if many is not None and one and one[0] > 0 else None

    @property
    def speedup_text(self) -> str:
        """The speed-up for people, with a word where it is noise; empty where it is not known."""
        return "" if self.speedup is None else format_speedup(self.speedup, self.outcomes[0].cards)

    @property
    def ok(self) -> bool:
        """Whether something was judged, and everything that was judged is well, or known beforehand not to be."""
        found = [verdict for verdicts in self.verdicts.values() for verdict in verdicts]
        return bool(found) and all(verdict.ok or verdict.expected_failure for verdict in found)

    @property
    def converged(self) -> int | None:
        """How many rounds reached the target; None where none was meant to."""
        meant = [outcome for outcome in self.outcomes if outcome.meant_to_converge]
        if not meant:
            return None
        return sum(has_converged(outcome) for outcome in meant)

    @property
    def vendor_code(self) -> str:
        """What the vendor brings beside its config, in a few words; empty where it brings nothing."""
        listed = dict.fromkeys(name for outcome in self.outcomes for name in outcome.vendor_code)
        return vendor_code.phrase(self.outcomes[0].vendor, listed) if listed else ""

    @property
    def meant(self) -> int:
        """How many rounds were to reach the target."""
        return sum(outcome.meant_to_converge for outcome in self.outcomes)

    @property
    def quality(self) -> float | None:
        """The last evaluation, the median of the rounds that ended well and were to reach the target."""
        return last_quality(self.outcomes)

    def median(self, name: str) -> float | None:
        """Over the rounds that ended well."""
        return statistics.summarize(outcome.value(name) for outcome in self.outcomes if outcome.ok).median


@dataclass(frozen=True)
class StoredRun:
    """A run directory as read; ``problems`` says what in it could not be read."""

    directory: Path
    info: RunInfo | None
    cases: tuple[CaseResult, ...]
    problems: tuple[str, ...] = ()


def last_quality(outcomes: Iterable[Outcome]) -> float | None:
    """What the metric came to: the median of the rounds that ended well and were to reach the target."""
    return statistics.summarize(one.quality.last for one in outcomes if one.ok and one.meant_to_converge).median


def save_outcome(round_dir: Path, outcome: Outcome) -> Path:
    return RoundDir(round_dir).write_outcome(outcome.to_json())


def load_outcome(round_dir: Path) -> Outcome:
    path = round_dir / layout.OUTCOME
    return Outcome.from_json(files.read_printable(path, SCHEMA), str(path))


def read_round(round_dir: Path) -> Outcome:
    """A round's stored outcome, else what its files say; a failed outcome with the reason if they cannot be read."""
    if not RoundDir(round_dir).has_outcome:
        return measured(round_dir)
    return _or_unreadable(load_outcome, round_dir)


def measured(round_dir: Path) -> Outcome:
    """What a round's files say; a failed outcome with the reason if they cannot be read."""
    return _or_unreadable(measure, round_dir)


def _or_unreadable(read: Callable[[Path], Outcome], round_dir: Path) -> Outcome:
    try:
        return read(round_dir)
    except FormatError as error:
        reason = str(error)
    except Exception as error:  # what no check foresaw fails this round, and takes no other case with it
        reason = f"{round_dir}: {type(error).__name__}: {error}"
    return unreadable(round_dir, reason)


def save_verdicts(case_dir: Path, test: str, verdicts: Sequence[Verdict]) -> Path:
    """One file per test, so that what was judged before a kill is kept."""
    path = case_dir / layout.VERDICTS / layout.verdicts_file(test)
    files.write(path, {"schema": SCHEMA, "test": test, "verdicts": list(verdicts)})
    return path


def load_verdicts(case_dir: Path) -> dict[str, tuple[Verdict, ...]]:
    """By test; a file that cannot be read is a failed verdict with the reason."""
    return dict(_judged(path) for path in sorted((case_dir / layout.VERDICTS).glob("*.json")))


def _judged(path: Path) -> tuple[str, tuple[Verdict, ...]]:
    try:
        body = files.read_printable(path, SCHEMA)
        return str(body["test"]), _verdicts(body["verdicts"], str(path))
    except FormatError as error:
        reason = str(error)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{path}: does not hold verdicts: {error}"
    return path.stem, (Verdict("record", False, "unreadable", "verdicts", reason),)


def _verdicts(items: Iterable[Mapping[str, Any]], where: str) -> tuple[Verdict, ...]:
    verdicts = tuple(Verdict.from_json(item) for item in items)
    for verdict in verdicts:
        type_check.check(verdict, where)
        if not verdict.name.strip():
            raise FormatError(f"{where}: a verdict has no name")
    return verdicts


def save_one_card(case_dir: Path, one_card: OneCard) -> Path:
    """What the case's speed-up is measured against."""
    path = case_dir / layout.ONE_CARD_FIGURE
    files.write(path, {"schema": SCHEMA, "one_card": one_card})
    return path


def write_run(run_dir: Path, info: RunInfo, cases: Sequence[CaseResult]) -> tuple[Path, Path]:
    """results.json and results.csv."""
    body = {"schema": SCHEMA, "run": info, "cases": [_case_json(case) for case in cases]}
    results, table = run_dir / layout.RESULTS, run_dir / layout.TABLE
    files.write(results, body)
    write_csv(table, [(run_dir.name, (outcome for case in cases for outcome in case.outcomes))])
    return results, table


def load_run(run_dir: Path) -> StoredRun:
    """What is there, is read: a run that was killed has rounds without outcome.json and no results.json."""
    problems: list[str] = []
    info = load_info(run_dir, problems)
    return StoredRun(run_dir, info, tuple(each_case(run_dir, problems)), tuple(problems))


def load_results(path: Path) -> tuple[CaseResult, ...]:
    """Return the cases of a results.json alone, without the folders of its rounds; raise FormatError if it is damaged.

    The outcomes have no curves: these are in the rounds' own files. So take the stored verdicts, not ``converged``.
    """
    where = str(path)
    cases = files.read_printable(path, SCHEMA).get("cases")
    if not isinstance(cases, list):
        raise FormatError(f"{where}: cases is {cases!r:.40}; expected a list")
    try:
        return tuple(_case_from_json(body, where) for body in cases)
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{where}: does not hold cases: {type(error).__name__}: {error}") from error


def _case_from_json(body: Mapping[str, Any], where: str) -> CaseResult:
    outcomes = tuple(Outcome.from_json({**item, "schema": SCHEMA}, where) for item in body["outcomes"])
    if not outcomes:
        raise FormatError(f"{where}: case {body['case']!r:.80} has no rounds")
    verdicts = {str(test): _verdicts(items, where) for test, items in body["verdicts"].items()}
    one_card = body.get("one_card")
    return CaseResult(
        outcomes[0].case, outcomes, verdicts, None if one_card is None else _one_card_from(one_card, where)
    )


def each_case(run_dir: Path, problems: list[str]) -> Iterator[CaseResult]:
    """One after the other, for who needs no two at a time; ``problems`` gets what could not be read."""
    for case_dir in case_folders(run_dir):
        outcomes = tuple(read_round(one.path) for one in rounds_of(case_dir))
        problems += [one.failures[0].sentence for one in outcomes if one.state == UNREADABLE]
        yield CaseResult(outcomes[0].case, outcomes, load_verdicts(case_dir), _stored_one_card(case_dir, problems))


def find_one_card(reports_dir: Path, key: str | None, ran_on: Mapping[str, Any] | None = None) -> OneCard | None:
    """The newest stored round of one card, of this key and a machine like this, that ended well and unbent."""
    if not key:
        return None
    for run_dir in newest_first(reports_dir):
        for path in sorted(run_dir.glob(f"*/*/{layout.OUTCOME}")):
            found = _one_card(path, key, ran_on or {})
            if found is not None:
                return found
    return None


def _one_card(path: Path, key: str, ran_on: Mapping[str, Any]) -> OneCard | None:
    try:
        outcome = load_outcome(path.parent)
    except FormatError:
        return None
    values = statistics.finite([outcome.value("p_core")])
    keys = (outcome.fingerprint.get("key"), outcome.fingerprint.get("one_card_key"))
    if machine.differences(outcome.machine, ran_on):
        return None
    # One card that was slowed down would flatter all that are held against it.
    good = outcome.ok and not outcome.validity_warnings
    if not (good and outcome.cards == 1 and key in keys and values and values[0] > 0):
        return None
    where = path.parent
    return OneCard(
        values[0], f"stored in {where.parent.parent.name}/{where.parent.name}/{where.name}", outcome.rate_unit
    )


def load_info(run_dir: Path, problems: list[str]) -> RunInfo | None:
    """What the run says of itself; None where it did not come to its end."""
    path = run_dir / layout.RESULTS
    try:
        run = dict(files.read_printable(path, SCHEMA)["run"])
        for name in ("command", "selected", "unsupported"):
            run[name] = tuple(run.get(name) or ())
        info = RunInfo(**run)
        type_check.check(info, str(path))
        return info
    except FormatError as error:
        problems.append(str(error))
    except (KeyError, TypeError, ValueError) as error:
        problems.append(f"{path}: is not a run's result: {error}")
    return None


def _stored_one_card(case_dir: Path, problems: list[str]) -> OneCard | None:
    path = case_dir / layout.ONE_CARD_FIGURE
    if not path.exists():
        return None
    try:
        return _one_card_from(files.read_printable(path, SCHEMA)["one_card"], str(path))
    except FormatError as error:
        problems.append(str(error))
    except (KeyError, TypeError) as error:
        problems.append(f"{path}: does not hold one card's figure: {error}")
    return None


def _one_card_from(body: Mapping[str, Any], where: str) -> OneCard:
    p_core, known = body["p_core"], {name: tuple(map(number, body.get(name, ()))) for name in ("values", "many")}
    found = OneCard(**{**body, "p_core": None if p_core is None else number(p_core), **known})
    type_check.check(found, where)
    return found


def _case_json(case: CaseResult) -> dict[str, Any]:
    return {
        "case": case.case,
        "rounds": len(case.outcomes),
        "converged": case.converged,
        "ok": case.ok,
        "speedup": case.speedup,
        "one_card": case.one_card,
        "metrics": _metrics_json(case.outcomes),
        "verdicts": case.verdicts,
        "outcomes": [_round_json(outcome) for outcome in case.outcomes],
    }


def _metrics_json(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Per metric its record and, over the rounds that ended well, the middle and the spread."""
    found: dict[str, list[tuple[int, MetricValue]]] = {}
    for outcome in outcomes:
        for metric in outcome.metrics if outcome.ok else ():
            found.setdefault(metric.name, []).append((outcome.round, metric))
    return {name: _over_rounds(*zip(*rounds, strict=True)) for name, rounds in found.items()}


def _over_rounds(rounds: Sequence[int], metrics: Sequence[MetricValue]) -> dict[str, Any]:
    record, values = metrics[0], [metric.value for metric in metrics]
    summary = statistics.summarize(values)
    return {
        "unit": record.unit,
        "direction": record.direction,
        "how": record.how,
        **files.to_json_types(summary),
        "outliers": [rounds[place] for place in summary.outliers],
        "few": statistics.few(summary.count),
        "rounds": list(rounds),
        "values": values,
        "samples": [metric.samples for metric in metrics],
        "warmup": record.warmup,
    }


def _round_json(outcome: Outcome) -> dict[str, Any]:
    """The round without curves, its own and the reference's, which are in its own outcome.json."""
    body = outcome.to_json()
    for name in ("steps", "evaluations", "reference", "schema"):
        del body[name]
    return body
