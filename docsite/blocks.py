"""The code blocks of the documents: fenced, or indented with a command in the first line.

``<!-- not run: REASON -->`` before a block exempts it. ``tests/docs/test_blocks.py`` runs all other blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = (
    "pytest", "flagperf", "make", "pip", "git", "python", "python3", "apt-get", "ruff", "salloc", "sbatch", "srun",
    "mkdir", "cp", "rm", "ls", "head", "echo", "docker",
)  # fmt: skip
_FENCE = re.compile(r"^```(\w*)\s*$")
_EXEMPT = re.compile(r"^<!-- not run: (.+) -->$")
_NAME = re.compile(r"^`([\w./-]+)`[:：]$")
_PROMPT = "$ "
_ASSIGNMENT = re.compile(r"[A-Z_]+=\S* ")


@dataclass(frozen=True)
class Block:
    """A block of code; ``exempt`` is the reason why no test runs it, ``name`` the file that the page gives it."""

    page: str
    line: int
    language: str
    text: str
    exempt: str = ""
    name: str = ""
    fenced: bool = True

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a block of commands, without prompts, comments and output."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        if any(line.startswith(_PROMPT) for line in lines):
            lines = [line.removeprefix(_PROMPT) for line in lines if line.startswith(_PROMPT)]
        return [command for line in lines if (command := _without_comment(line))]


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s+)#\s.*$", "", line).strip()


def is_command(line: str) -> bool:
    """Return True if a line begins with a program, perhaps after a prompt and assignments of variables."""
    text = line.strip().removeprefix(_PROMPT)
    while match := _ASSIGNMENT.match(text):
        text = text[match.end() :]
    words = text.split()
    return bool(words) and words[0].removeprefix(".venv/bin/") in PROGRAMS


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a Markdown document."""
    lines = text.splitlines()
    place, before, name = 0, "", ""
    while place < len(lines):
        line = lines[place]
        if match := _FENCE.match(line):
            end = next((n for n in range(place + 1, len(lines)) if lines[n].startswith("```")), len(lines))
            yield Block(page, place + 1, match[1], "".join(f"{one}\n" for one in lines[place + 1 : end]), before, name)
            before, name, place = "", "", end + 1
        elif line.startswith("    "):
            end = next((n for n in range(place, len(lines)) if lines[n].strip() and lines[n][:4].strip()), len(lines))
            content = [line[4:] for line in lines[place:end]]
            follows_blank = place == 0 or not lines[place - 1].strip()
            if follows_blank and is_command(content[0]):
                yield Block(page, place + 1, "sh", "\n".join(content).rstrip() + "\n", before, fenced=False)
            before, name, place = "", "", end
        else:
            if line.strip():
                exempt, named = _EXEMPT.match(line), _NAME.match(line)
                before, name = exempt[1] if exempt else "", named[1] if named else ""
            place += 1


def documents(repo: Path) -> list[Path]:
    return [*sorted(repo.glob("docs/*.md")), repo / "README.md", repo / "README.zh.md", repo / "CONTRIBUTING.md"]


def blocks_of_file(repo: Path, name: str) -> list[Block]:
    return list(blocks_of(name, (repo / name).read_text(encoding="utf-8")))


def all_blocks(repo: Path) -> list[Block]:
    """Return the blocks of all documents."""
    return [block for file in documents(repo) for block in blocks_of_file(repo, file.relative_to(repo).as_posix())]
