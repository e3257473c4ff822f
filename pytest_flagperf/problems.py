"""What a user can mend: told in sentences, all at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from .printable import printable

# A user and password in an address, and the value of a variable that a container is given.
_CREDENTIALS = re.compile(
    r"""(?<=://)[^/@\s]+(?=@)"""
    r"""|((?:^|[\s='"])(?:-e|--env)[ =]?['"]\w+=)[^'"]*|((?:^|[\s='"])(?:-e|--env)[ =]?\w+=)[^\s'"]+"""
)


class Problems(ValueError):
    """One or more problems, one sentence each; the base of every error that is the user's to mend."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(map(printable, problems))
        super().__init__("\n".join(self.problems))


def near(word: str, words: Iterable[str]) -> str:
    """``; did you mean x or y?``, or nothing where no word is near."""
    folded = {other.lower(): other for other in words}
    found = [folded[match] for match in get_close_matches(word.lower(), folded, n=3, cutoff=0.6)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def without_credentials(text: str) -> str:
    """The text with what nobody else must read in it put out."""
    return _CREDENTIALS.sub(lambda found: f"{found[1] or found[2] or ''}***", text)
