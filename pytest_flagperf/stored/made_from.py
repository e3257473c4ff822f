"""What stored figures were made from: an outcome from the files of its round, the results of a run from its outcomes.

``outcome.json`` has the digests of the other files of its round. ``results.json`` has the digests of all outcomes and
verdicts. So a digest of ``results.json`` stands for every file that its figures come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import digests, layout


def of_round(round_dir: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a round by its relative path, except its outcome and hidden files."""
    return {name: digests.of_file(path) for name, path in _files_of_round(round_dir).items()}


def of_run(run_dir: Path) -> dict[str, str | None]:
    """Return the digest that each outcome and each file of verdicts has, by the file's relative path."""
    start = len(f"{run_dir.as_posix()}/")
    return {path.as_posix()[start:]: digests.stored_in(path) for path in _files_of_run(run_dir)}


def changed_in_round(round_dir: Path, outcome: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each file of a round that is not the one that its outcome was measured from."""
    yield from _changed(round_dir, outcome, of_round(round_dir), layout.OUTCOME)


def changed_in_run(run_dir: Path, results: Mapping[str, Any], found: Mapping[str, str | None]) -> Iterator[str]:
    """Yield a sentence for each outcome or file of verdicts that is not the one that results.json was made from.

    ``found`` is what ``of_run`` returned.
    """
    yield from _changed(run_dir, results, found, layout.RESULTS)


def _changed(folder: Path, body: Mapping[str, Any], found: Mapping[str, str | None], made: str) -> Iterator[str]:
    made_from = body.get(digests.MADE_FROM)
    if not isinstance(made_from, dict):  # made before digests were stored
        return
    for name in sorted({*made_from, *found}):
        if name not in found:
            reason = f"it is missing, and {made} was made from it"
        elif name not in made_from:
            reason = f"{made} was made without it"
        elif made_from[name] != found[name]:
            reason = f"{made} was made from another one"
        else:
            continue
        yield f"{folder / name}: {digests.CHANGED}: {reason}"


def _files_of_round(round_dir: Path) -> dict[str, Path]:
    names = ((path.relative_to(round_dir).as_posix(), path) for path in sorted(round_dir.rglob("*")))
    hidden = ((name, path) for name, path in names if name != layout.OUTCOME and not path.name.startswith("."))
    return {name: path for name, path in hidden if path.is_file() and not path.is_symlink()}


def _files_of_run(run_dir: Path) -> list[Path]:
    patterns = (f"*/*/{layout.OUTCOME}", f"*/{layout.VERDICTS}/*.json", f"*/{layout.ONE_CARD_FIGURE}")
    return sorted(path for pattern in patterns for path in run_dir.glob(pattern))
