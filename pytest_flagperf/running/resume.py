"""Going on with a run that broke off: what was asked then, and which of its rounds are still to be run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_flagperf import stored
from pytest_flagperf.problems import Problems, kind
from pytest_flagperf.results import store
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.settings import COMMAND_LINE_OPTIONS, Settings, located, wrong_value
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import ASKED, is_repeatable
from pytest_flagperf.stored.round import RoundDir

# What cases were asked for says these already; a plan or a look at the hosts alone is not to be gone on with.
_NOT_KEPT = frozenset(["case", "nodes", "hw", "repeat", "reports", "resume", "plan", "preflight"])


def remember(directory: Path, settings: Settings, cases: Iterable[tuple[str, str | None]]) -> None:
    """Save the options so that --resume can continue this run; a site's settings are read from their file again."""
    given = {option: getattr(settings, option.key) for option in COMMAND_LINE_OPTIONS if settings.given(option.key)}
    asked = {
        option.key: value
        for option, value in given.items()
        if option.key not in _NOT_KEPT and option.may_be_stored(value)
    }
    asked["case"] = [f"{case}={data_dir}" if data_dir else case for case, data_dir in cases]
    stored.write(directory / ASKED, asked)


def recalled(command_line: Mapping[str, Any], cwd: Path) -> dict[str, Any]:
    """The command line over what was asked of the run that it goes on with."""
    given = {key: value for key, value in command_line.items() if value is not None}
    if not given.get("resume"):
        return dict(command_line)
    directory = Path(located(str(given["resume"]), cwd))
    try:
        asked = _asked(directory / ASKED)
    except FormatError as error:
        raise Problems(
            [f"--resume={given['resume']}: is no run to go on with: {error}; expected a run directory"]
        ) from error
    return {**command_line, **asked, **given}


def _asked(file: Path) -> dict[str, Any]:
    """Return the options in the file; other keys have no effect."""
    asked = stored.read(file)
    found = {option: asked[option.key] for option in COMMAND_LINE_OPTIONS if option.key in asked}
    for option, value in found.items():
        if wrong := wrong_value(option, value):
            raise FormatError(f"{file}: {option.key} is {kind(value)}: {wrong}")
    return {option.key: value for option, value in found.items()}


def set_aside(directory: Path) -> list[str]:
    """Rename the rounds that failed or whose records cannot be read, so that they run again; a sentence for each."""
    told = []
    for round_dir in map(RoundDir, sorted(path for path in directory.glob("*/*") if is_repeatable(path.name))):
        outcome = store.read_round(round_dir.path) if round_dir.has_ended else None
        reason = None if outcome is None else _reason_to_repeat(round_dir, outcome)
        if outcome is not None and reason is not None:
            round_dir.move_aside()
            told.append(f"runs again: {outcome.case}: {reason}")
    return told


def _reason_to_repeat(round_dir: RoundDir, outcome: Outcome) -> str | None:
    """Why a round that ended is not done; None if it is."""
    try:
        round_dir.read_hosts()
        round_dir.read_record()
    except FormatError as error:
        return str(error)
    if outcome.ok:
        return None
    return outcome.failures[0].sentence if outcome.failures else outcome.state
