"""Read and write stored results: outcome.json per round, verdicts per case, results.json and results.csv per run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_flagperf.results.figures import statistics
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.measure import measured, or_unreadable
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import UNREADABLE, Outcome, counted
from pytest_flagperf.results.tables.columns import write_csv
from pytest_flagperf.results.verdicts import OneCard, Verdict
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import FormatError, digests, files, layout, type_check
from pytest_flagperf.stored.round_dir import RoundDir, case_folders, rounds_of

SCHEMA = 1
_INTERRUPTED = 2


@dataclass(frozen=True)
class RunInfo:
    """The facts of a run."""

    command: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    started_ms: int | None = None
    ended_ms: int | None = None
    exit_status: int | None = None
    selected: tuple[str, ...] = ()
    """The cases of the tests that pytest selected, also those that cannot run."""
    not_run: tuple[str, ...] = ()
    """A line for each selected case without a result, with the reason."""
    controller: Mapping[str, float] = field(default_factory=dict)
    """Measurements of the machine that ran pytest, before the run, and of pytest at its end."""

    @property
    def is_interrupted(self) -> bool:
        """Whether the exit status is pytest's of an interrupted run."""
        return self.exit_status == _INTERRUPTED

    @property
    def took(self) -> str:
        """The time of the run, of a resumed one from its first start on; empty if it is unknown."""
        if self.started_ms is None or self.ended_ms is None:
            return ""
        pause = " with a pause (--resume)" if any(word.startswith("--resume") for word in self.command) else ""
        return f"{quantity((self.ended_ms - self.started_ms) / 1000, 's')}{pause}"


@dataclass(frozen=True)
class StoredRun:
    """The contents of a run directory; ``problems`` lists the parts that could not be read or were changed."""

    directory: Path
    info: RunInfo | None
    cases: tuple[CaseResult, ...]
    problems: tuple[str, ...] = ()

    @property
    def is_interrupted(self) -> bool:
        return self.info is not None and self.info.is_interrupted

    @property
    def started_ms(self) -> int:
        """When the run, or of a resumed run its first part, started; 0 if it is unknown."""
        own = self.info.started_ms if self.info else None
        starts = (own, *(outcome.started_ms for case in self.cases for outcome in case.outcomes))
        return min((start for start in starts if start is not None), default=0)

    @property
    def changed(self) -> tuple[str, ...]:
        """The problems of files that were changed after the run."""
        return tuple(problem for problem in self.problems if digests.CHANGED in problem)


def save_outcome(round_dir: Path, outcome: Outcome) -> Path:
    return RoundDir(round_dir).write_outcome(outcome.to_json())


def measure_round(round_dir: Path) -> Outcome:
    """Measure a round from its files, and store the outcome."""
    outcome = measured(round_dir)
    save_outcome(round_dir, outcome)
    return outcome


def load_outcome(round_dir: Path) -> Outcome:
    path = round_dir / layout.OUTCOME
    return Outcome.from_json(digests.read(path, SCHEMA), str(path))


def read_round(round_dir: Path) -> Outcome:
    """Return the stored outcome of a round, or measure it; unreadable files give a failed outcome with the reason."""
    if not RoundDir(round_dir).has_outcome:
        return measured(round_dir)
    return or_unreadable(load_outcome, round_dir)


def save_verdicts(case_dir: Path, test: str, verdicts: Sequence[Verdict]) -> Path:
    """Write the verdicts of a test to a file of their own, so that they are kept if the run is killed."""
    path = case_dir / layout.VERDICTS / layout.verdicts_file(test)
    files.write(path, {"schema": SCHEMA, "test": test, "verdicts": list(verdicts)})
    return path


def load_verdicts(case_dir: Path) -> dict[str, tuple[Verdict, ...]]:
    """Return the verdicts by test; an unreadable file gives a failed verdict with the reason."""
    return dict(_judged(path) for path in sorted((case_dir / layout.VERDICTS).glob("*.json")))


def _judged(path: Path) -> tuple[str, tuple[Verdict, ...]]:
    try:
        body = digests.read(path, SCHEMA)
        return str(body["test"]), _verdicts(body["verdicts"], str(path))
    except FormatError as error:
        reason = str(error)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{path}: no valid verdicts: {error}"
    return path.stem, (Verdict("record", False, UNREADABLE, "verdicts", reason),)


def is_unreadable(verdict: Verdict) -> bool:
    """Return True for the failed verdict that stands for a file of verdicts that cannot be read."""
    return verdict.name == "record" and verdict.got == UNREADABLE


def _verdicts(items: Iterable[Mapping[str, Any]], where: str) -> tuple[Verdict, ...]:
    verdicts = tuple(type_check.typed(Verdict, item, f"{where}: verdicts") for item in items)
    for verdict in verdicts:
        if not verdict.name.strip():
            raise FormatError(f"{where}: a verdict has no name")
    return verdicts


def save_one_card(case_dir: Path, one_card: OneCard) -> Path:
    """Store the throughput of one card that the case is compared with."""
    path = case_dir / layout.ONE_CARD_FIGURE
    files.write(path, {"schema": SCHEMA, "one_card": one_card})
    return path


def write_run(run_dir: Path, info: RunInfo, cases: Sequence[CaseResult]) -> tuple[Path, Path]:
    """Write results.json, SHA256SUMS and results.csv."""
    body = {"schema": SCHEMA, "run": info, "cases": [case_json(case, info) for case in cases]}
    results, table = run_dir / layout.RESULTS, run_dir / layout.TABLE
    digests.write_results(run_dir, f"{files.dumps(files.to_json_types(body))}\n")
    write_csv(table, [(run_dir.name, (outcome for case in cases for outcome in case.outcomes))])
    return results, table


def load_run(run_dir: Path) -> StoredRun:
    """Read a run; a killed run has no results.json, and rounds without outcome.json."""
    problems: list[str] = []
    info, cases = load_info(run_dir, problems), tuple(iterate_cases(run_dir, problems))
    return StoredRun(run_dir, info, cases, tuple(problems))


def load_results(path: Path) -> tuple[CaseResult, ...]:
    """Return the cases of a results.json alone, without the folders of its rounds; raise FormatError if it is damaged.

    The outcomes have no curves: these are in the rounds' own files. So take the stored verdicts, not ``converged``.
    """
    where = str(path)
    cases = digests.read(path, SCHEMA).get("cases")
    if not isinstance(cases, list):
        raise FormatError(f"{where}: cases is {cases!r:.40}; expected a list")
    try:
        return tuple(_case_from_json(body, where) for body in cases)
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{where}: no valid cases: {type(error).__name__}: {error}") from error


def _case_from_json(body: Mapping[str, Any], where: str) -> CaseResult:
    outcomes = tuple(Outcome.from_json({**item, "schema": SCHEMA}, where) for item in body["outcomes"])
    if not outcomes:
        raise FormatError(f"{where}: case {body['case']!r:.80} has no rounds")
    verdicts = {str(test): _verdicts(items, where) for test, items in body["verdicts"].items()}
    one_card = body.get("one_card")
    return CaseResult(
        outcomes[0].case, outcomes, verdicts, None if one_card is None else type_check.typed(OneCard, one_card, where)
    )


def iterate_cases(run_dir: Path, problems: list[str]) -> Iterator[CaseResult]:
    """Yield the cases of a run one by one, to save memory; append unreadable parts to ``problems``."""
    for case_dir in case_folders(run_dir):
        outcomes = tuple(read_round(one.path) for one in rounds_of(case_dir))
        problems += [outcome.failures[0].sentence for outcome in outcomes if outcome.state == UNREADABLE]
        verdicts = load_verdicts(case_dir)
        problems += [verdict.sentence for judged in verdicts.values() for verdict in judged if is_unreadable(verdict)]
        yield CaseResult(outcomes[0].case, outcomes, verdicts, load_one_card(case_dir, problems))


def load_info(run_dir: Path, problems: list[str]) -> RunInfo | None:
    """Read the facts of a run; None if it did not finish."""
    path = run_dir / layout.RESULTS
    try:
        body = digests.read(path, SCHEMA)
        problems += digests.missing(run_dir)
        run = {name: value for name, value in body["run"].items() if value is not None}
        return type_check.typed(RunInfo, run, str(path))
    except FormatError as error:
        problems.append(str(error))
    except (KeyError, AttributeError) as error:
        problems.append(f"{path}: not a valid run: {error}")
    return None


def load_one_card(case_dir: Path, problems: list[str]) -> OneCard | None:
    """Read the stored throughput of one card; None without one."""
    path = case_dir / layout.ONE_CARD_FIGURE
    if not path.exists():
        return None
    try:
        return type_check.typed(OneCard, digests.read(path, SCHEMA)["one_card"], str(path))
    except FormatError as error:
        problems.append(str(error))
    except (KeyError, TypeError) as error:
        problems.append(f"{path}: no valid figure of one card: {error}")
    return None


def case_json(case: CaseResult, info: RunInfo) -> dict[str, Any]:
    """Return what results.json has of a case; a case with rounds that an interrupted run did not begin is not ok."""
    return {
        "case": case.case,
        "rounds": len(case.outcomes),
        "finished": sum(outcome.ok for outcome in case.outcomes),
        "converged": case.converged,
        "ok": case.ok and not (info.is_interrupted and len(case.outcomes) < case.repeat),
        "speedup": case.speedup,
        "one_card": case.one_card,
        "metrics": _metrics_json(case.outcomes),
        "verdicts": case.verdicts,
        "outcomes": [_round_json(outcome) for outcome in case.outcomes],
    }


def _metrics_json(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """The summary of each metric over the rounds that count."""
    by_name: dict[str, list[tuple[int, MetricValue]]] = {}
    for outcome in counted(outcomes):
        for metric in outcome.metrics:
            by_name.setdefault(metric.name, []).append((outcome.round, metric))
    return {name: _over_rounds(*zip(*rounds, strict=True)) for name, rounds in by_name.items()}


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
    """The outcome without curves, which are in the round's outcome.json."""
    body = outcome.to_json()
    for name in ("steps", "evaluations", "reference", "schema"):
        del body[name]
    return body
