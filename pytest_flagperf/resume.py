"""Going on with a run that broke off: what was asked then, and which of its rounds are still to be run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .problems import Problems, without_credentials
from .results import store
from .settings import OPTIONS, Settings, located

FILE = "asked.json"
# What cases were asked for says these already; a plan or a look at the hosts alone is not to be gone on with.
_NOT_KEPT = frozenset(["case", "nodes", "hw", "repeat", "reports", "resume", "plan", "preflight"])

# Not an option: those that a user must give again.
_AGAIN = "give_again"


def remember(directory: Path, settings: Settings, cases: Iterable[tuple[str, str | None]]) -> None:
    """Keep what was asked, for a later run that goes on with this one. What may hold a password is left out."""
    given = {option.key: getattr(settings, option.key) for option in OPTIONS if settings.given(option.key)}
    asked = {key: value for key, value in given.items() if key not in _NOT_KEPT and _is_plain(value)}
    asked[_AGAIN] = [key for key, value in given.items() if settings.commanded(key) and not _is_plain(value)]
    asked["case"] = [f"{case}={data_dir}" if data_dir else case for case, data_dir in cases]
    (directory / FILE).write_text(json.dumps(asked, indent=1) + "\n", "utf-8")


def recalled(command_line: Mapping[str, Any], cwd: Path) -> dict[str, Any]:
    """The command line over what was asked of the run that it goes on with."""
    given = {key: value for key, value in command_line.items() if value is not None}
    if not given.get("resume"):
        return dict(command_line)
    directory = Path(located(str(given["resume"]), cwd))
    try:
        asked = _asked(directory / FILE)
    except (OSError, ValueError) as error:
        raise Problems(
            [
                f"--resume={given['resume']}: is no run to go on with: {FILE} cannot be read: {error};"
                " a run directory is wanted"
            ]
        ) from error
    _check_given_again(given, asked.pop(_AGAIN, ()))
    return {**command_line, **asked, **given}


def _check_given_again(given: Mapping[str, Any], wanted: Iterable[str]) -> None:
    lacking = [f"--{key.replace('_', '-')}" for key in wanted if key not in given]
    if lacking:
        raise Problems(
            [f"--resume={given['resume']}: give {', '.join(lacking)} again: it was not kept, as it may hold a password"]
        )


def _asked(file: Path) -> dict[str, Any]:
    """What stands in the file, but for options that there are no more."""
    asked = json.loads(file.read_text("utf-8"))
    if not isinstance(asked, dict):
        raise ValueError(f"an object is wanted, and it holds {asked!r:.40}")
    known = {option.key for option in OPTIONS} | {_AGAIN}
    return {key: value for key, value in asked.items() if key in known}


def set_aside(directory: Path) -> list[str]:
    """Rename the rounds that failed, so that they run again; a sentence for each."""
    told = []
    for path in sorted(directory.glob("*/round*/outcome.json")):
        outcome = store.load_outcome(path.parent)
        if not outcome.ok:
            why = outcome.failures[0].sentence if outcome.failures else outcome.state
            move_aside(path.parent)
            told.append(f"runs again: {outcome.case}: {why}")
    return told


def move_aside(round_dir: Path) -> None:
    """Out of the way of the round that takes its place; nothing of it is lost."""
    taken = len(list(round_dir.parent.glob(f"failed*-{round_dir.name}")))
    round_dir.rename(round_dir.with_name(f"failed{taken + 1}-{round_dir.name}"))


def _is_plain(value: object) -> bool:
    words = value if isinstance(value, tuple) else (value,)
    return all(without_credentials(str(word)) == str(word) for word in words)
