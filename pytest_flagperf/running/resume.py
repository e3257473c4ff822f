"""Resume an interrupted run: restore its options, and find the rounds that must run again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_flagperf import stored
from pytest_flagperf.plan import Plan
from pytest_flagperf.problems import Problems, kind
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.tables.runs import expected_run
from pytest_flagperf.settings import COMMAND_LINE_OPTIONS, Settings, located, wrong_value
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import OPTIONS, OUTCOME, is_repeatable
from pytest_flagperf.stored.round_dir import RoundDir, rounds_of

if TYPE_CHECKING:
    from pytest_flagperf.results.measured.outcome import Outcome

# The stored cases replace the options that select them; --plan and --preflight run nothing to resume.
_NOT_STORED = frozenset(["case", "each", "nodes", "hw", "repeat", "reports", "resume", "plan", "preflight"])


def save_options(directory: Path, settings: Settings, cases: Iterable[tuple[str, str | None]]) -> None:
    """Save the command-line options so that --resume can continue this run."""
    given = {option: getattr(settings, option.key) for option in COMMAND_LINE_OPTIONS if settings.given(option.key)}
    options = {
        option.key: value
        for option, value in given.items()
        if option.key not in _NOT_STORED and option.may_be_stored(value)
    }
    options["case"] = [f"{case}={data_dir}" if data_dir else case for case, data_dir in cases]
    stored.write(directory / OPTIONS, options)


def with_stored_options(command_line: Mapping[str, Any], cwd: Path) -> dict[str, Any]:
    """Return the command line, with the stored options of the run to resume where an option is not given."""
    given = {key: value for key, value in command_line.items() if value is not None}
    if not given.get("resume"):
        return dict(command_line)
    directory = Path(located(str(given["resume"]), cwd))
    try:
        options = _read_options(directory / OPTIONS)
    except FormatError as error:
        reason = error if os.path.isdir(directory) else "no such directory"  # noqa: PTH112 - also too long a name
        raise Problems([f"--resume={given['resume']}: cannot resume: {reason}; {expected_run(directory)}"]) from error
    return {**command_line, **options, **given}


def _read_options(file: Path) -> dict[str, Any]:
    """Return the options in the file; unknown keys have no effect."""
    table = stored.read(file)
    options = {option: table[option.key] for option in COMMAND_LINE_OPTIONS if option.key in table}
    for option, value in options.items():
        if wrong := wrong_value(option, value):
            raise FormatError(f"{file}: {option.key} is {kind(value)}: {wrong}")
    return {option.key: value for option, value in options.items()}


def remarks(settings: Settings, directory: Path, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the options that a resumed run ignores, and how the rounds that it keeps differ from those it runs now."""
    from pytest_flagperf.results.comparing.comparable import fingerprint_differences  # loads slowly

    cases = [plan.case for plan in plans]
    stored_cases = {
        "nodes": {str(case.shape) for case in cases},
        "hw": {case.hardware for case in cases},
        "repeat": {str(case.repeat) for case in cases},
    }
    for key, values in stored_cases.items():
        given = getattr(settings, key)
        words = given if isinstance(given, tuple) else str(given).split(",")
        if settings.commanded(key) and cases and {*map(str, words)} != values:
            yield f"{settings.as_written(key)} has no effect: --resume continues the cases of the run"
    if settings.commanded("each"):
        yield f"{settings.as_written('each')} has no effect: --resume continues the cases of the run"
    for plan in plans:
        kept = [round_dir for round_dir in rounds_of(directory / plan.case.folder) if round_dir.has_ended]
        with suppress(FormatError):  # its outcome will say that its plan cannot be read
            changed = fingerprint_differences(kept[0].read_plan().fingerprint, plan.fingerprint) if kept else []
            if changed:
                rounds = count(len(kept), "finished round")
                yield f"{plan.case}: {rounds} kept, measured with other values: {'; '.join(changed)}"


def set_failed_rounds_aside(directory: Path) -> list[str]:
    """Rename the rounds that failed or whose records cannot be read, so that they run again; return a line for each.

    If only its replay is missing, a round stays, without its outcome.
    """
    from pytest_flagperf.results.tables import store  # loads slowly, and few runs resume one

    from .replay import missing

    lines = []
    for round_dir in map(RoundDir, sorted(path for path in directory.glob("*/*") if is_repeatable(path.name))):
        outcome = store.read_round(round_dir.path) if round_dir.has_ended else None
        reason = None if outcome is None else _reason_to_repeat(round_dir, outcome)
        if outcome is not None and reason is not None:
            round_dir.move_aside()
            lines.append(f"runs again: {outcome.case}: {reason}")
        elif outcome is not None and (problem := missing(outcome)):
            (round_dir.path / OUTCOME).unlink(missing_ok=True)  # Rounds.run repeats it
            lines.append(f"replay missing: {outcome.case}: {problem}")
    return lines


def _reason_to_repeat(round_dir: RoundDir, outcome: Outcome) -> str | None:
    """Return why a round that ended must run again; None if it is valid."""
    from pytest_flagperf.results.measured.outcome import why_failed  # loads slowly

    try:
        round_dir.read_hosts()
        round_dir.read_record()
    except FormatError as error:
        return str(error)
    return None if outcome.ok else why_failed(outcome)
