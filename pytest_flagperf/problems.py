"""What a user can mend: told in sentences, all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Problems(ValueError):
    """One or more problems, one sentence each; the base of every error that is the user's to mend."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


def near(word: str, allowed: Iterable[str]) -> str:
    """What was probably meant, else what is allowed; the tail of a sentence."""
    known = sorted(allowed)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"known are {', '.join(known)}" if known else "there are none"
