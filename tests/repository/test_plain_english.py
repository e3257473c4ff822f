"""What people read is plain technical English: CONTRIBUTING.md lists the rules, this test lists lines to look at."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
LIMIT = 60
SUFFIXES = {".py", ".md", ".toml", ".js", ".sh"}
SKIPPED = {"samples", "golden", "published", "test_plain_english.py"}
BE = r"(?:is|are|was|were|be|been)"
HINTS = {
    rf"{BE} (?:told|said|asked|wanted|got to)": "name who reports, prints, passes or requires",
    r"told|said": "write reported, printed, logged or passed",
    r"wanted (?:is|it|are)": "write expected or requires",
    r"nobody|whoever": "write no user, no process, each user who",
    r"(?:there )?(?:is|are|was|were) (?-i:none)": "write no X, or X not found",
    r"there (?:is|are) no such": "write X not found",
    r"one that|all the same|over again|seldom": "name the noun, or leave the words out",
    r"what (?:has|lacks|cannot|may)": "name the subject",
    r"(?:un)?like ones": "write the same or different X",
    r"mend(?:s|ed|ing)?": "write fix",
    r"(?:muster|crew|companion|stranger|agenda|errand|janitor|venue)s?": "use the established word, not a metaphor",
}
PATTERN = re.compile("|".join(rf"(?P<hint{n}>\b(?:{words})\b)" for n, words in enumerate(HINTS)), re.IGNORECASE)


def problems(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text that are hard to read, with a hint for each."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := PATTERN.search(line):
            hint = list(HINTS.values())[int(str(match.lastgroup).removeprefix("hint"))]
            yield number, f"{match[0]!r}: {hint}: {line.strip()[:120]}"


def tracked_files() -> list[Path]:
    """The files of the repository whose texts are English and written here."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    paths = [Path(name) for name in listed.split("\0") if name and not name.endswith(".zh.md")]
    return [REPO / path for path in paths if path.suffix in SUFFIXES and not SKIPPED & set(path.parts)]


def test_few_lines_are_hard_to_read() -> None:
    lines = [
        f"{path.relative_to(REPO)}:{number}: {problem}"
        for path in tracked_files()
        if path.is_file()
        for number, problem in problems(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert len(lines) <= LIMIT, "\n".join(lines)


def test_unclear_sentences_are_listed_and_clear_ones_are_not() -> None:
    unclear = "3 hosts are wanted and there is 1: h1\n--launcher=foo: there is none\nMend it, or remove it.\n"
    clear = "needs 3 hosts, 1 available: h1\nround 1: 6 of 7 cases passed, 1 not run; got 0.4, expected at least 0.5\n"
    assert [number for number, _ in problems(unclear + clear)] == [1, 2, 3]
