"""Problems that the user can fix: one sentence each, reported all at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from .printable import printable

_SHOWN = 200


class Problems(ValueError):
    """One or more problems, one sentence each; the base class of all errors that the user can fix."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(map(printable, problems))
        super().__init__(self.problems)  # what another process makes the error of

    def __str__(self) -> str:
        return "\n".join(self.problems)


class MissingHosts(Problems):
    """Too few hosts are available at the moment."""


def near(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``; did you mean x or y?``, or an empty string if no word is near."""
    folded = {other.lower(): other for other in words}
    matches = [folded[match] for match in get_close_matches(word.lower(), folded, n=3, cutoff=cutoff)]
    return f"; did you mean {' or '.join(matches)}?" if matches else ""


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first names and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def kind(value: object) -> str:
    """Return the type of a value in words, for messages that must not hold the value."""
    words = {str: "a string", bool: "true or false", list: "a list", tuple: "a list", dict: "a table"}
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "a number"
    return words.get(type(value), f"a {type(value).__name__}")


def shown(value: object) -> str:
    """Return the ``repr`` of a value for a message, truncated if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # an integer of more than 4,300 digits, a list in itself
        return f"<{type(value).__name__}: {error}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def unusable_path(path: str) -> str | None:
    """Return why no file can have a path, here or on a host; None where one can."""
    if "://" in path:
        return "expected a path on this machine, got an address"
    try:
        os.stat(path)  # noqa: PTH116 - Path.exists() hides why
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        return f"cannot be used as a path: {error.strerror}"
    except ValueError as error:  # a null character, or a character that a file's name cannot hold
        return f"cannot be used as a path: {error}"
    return None
