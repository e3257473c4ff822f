"""What a user can mend: told in sentences, all at once."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class Problems(ValueError):
    """One or more problems, one sentence each; the base of every error that is the user's to mend."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


def near(word: str, words: Iterable[str]) -> str:
    """``; did you mean x or y?``, or nothing where no word is near."""
    folded = {other.lower(): other for other in words}
    found = [folded[match] for match in get_close_matches(word.lower(), folded, n=3, cutoff=0.6)]
    return f"; did you mean {' or '.join(found)}?" if found else ""
