"""Follow a page of docs/ step by step, in a copy of this repository."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docsite.blocks import blocks_of

REPO = Path(__file__).resolve().parents[2]


def git(folder: Path, *words: str) -> str:
    """Run Git in a folder, as a user whom it does not know; return its output."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def copy_checkout(target: Path) -> list[str]:
    """Copy the files that Git tracks, and new ones that it does not ignore; return their sorted names."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPO, capture_output=True, text=True, check=True).stdout.split("\0")
    copied = sorted(name for name in names if name and (REPO / name).is_file())
    for name in copied:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPO / name, target / name)
    return copied


def steps(page: str, end: str | None = None) -> Iterator[str]:
    """Yield the commands of a page in order, up to a heading."""
    text = (REPO / "docs" / page).read_text(encoding="utf-8")
    if end is not None:
        text, heading, _ = text.partition(f"\n## {end}\n")
        assert heading, f"docs/{page}: no heading {end}"
    for block in blocks_of(page, text):
        assert block.language == "sh", f"{block.place}: put files into docs/examples"
        if block.fenced:
            yield from block.text.splitlines()


class Copy:
    """A copy of this repository, with the output of each command that ran in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.outputs: dict[str, str] = {}
        bin_dir = Path(sys.executable).parent
        self.environment = {
            **os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}", "FLAGPERF_LEASES": str(folder / "leases"),
            "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200",
        }  # fmt: skip
        copy_checkout(self.root)
        for words in ("init -q", "add -A", "commit -qm all"):
            self.git(*words.split())

    def git(self, *words: str) -> str:
        return git(self.root, *words)

    @property
    def changed(self) -> list[str]:
        """Return the files that Git reports as new or changed."""
        return self.git("status", "--porcelain", "--untracked-files=all").splitlines()

    def run(self, command: str, code: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-ec", command], cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=900,
            check=False,
        )  # fmt: skip
        output = done.stdout + done.stderr
        assert done.returncode == code, f"{command}\n{output[-6000:]}"
        self.outputs[command] = output
        return output

    def follow(self, page: str, end: str | None = None, **only: str) -> None:
        """Run the commands of a page, up to a heading if one is given.

        ``only`` names by an option the command that gets this option.
        """
        options = {command: f" --{name.replace('_', '-')}" for name, command in only.items()}
        commands = list(steps(page, end))
        assert options.keys() <= set(commands)
        for command in commands:
            self.run(command + options.get(command, ""))

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    @property
    def runs(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted((self.root / "reports").glob("run*/results.json"))]
