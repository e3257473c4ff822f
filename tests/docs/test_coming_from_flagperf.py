"""The commands of docs/coming-from-flagperf.md run, and print what the page shows."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docsite.blocks import blocks_of_file
from tests.helpers import published

DOCUMENTS = ("coming-from-flagperf.md", "coming-from-flagperf.zh.md")


@pytest.mark.slow
def test_the_page_can_be_followed(tmp_path: Path) -> None:
    published.checkout(tmp_path / "FlagPerf")
    shutil.copytree(published.REPO / "vendors", tmp_path / "vendors")
    (tmp_path / "suites").symlink_to(published.REPO / "suites")
    output = ""
    shown = 0
    for block in blocks_of_file(published.REPO, f"docs/{DOCUMENTS[0]}"):
        if block.name:
            (tmp_path / block.name).write_text(block.text, encoding="utf-8")
        elif block.language == "sh" and block.fenced:
            output = "".join(run(command, tmp_path) for command in block.text.splitlines())
        elif block.language == "text":
            patterns = {line: r"\S*".join(map(re.escape, line.split("..."))) for line in block.text.splitlines()}
            missing = [line for line, pattern in patterns.items() if not re.search(pattern, output)]
            assert missing == [], output
            shown += 1
    assert shown == 3


def run(command: str, folder: Path) -> str:
    """Run a command of the page in a shell; return its output with single blanks."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTEST_ADDOPTS": "-p no:cacheprovider"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


def words() -> Iterator[str]:
    """Every option of FlagPerf's files that the page must explain."""
    for path, text in published.files().items():
        if path.startswith("training/run_benchmarks"):
            yield from (line.split()[0] for line in text.splitlines() if re.match(r"[A-Z_]+ = ", line))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_option_of_the_two_files_is_explained(document: str) -> None:
    text = (published.REPO / "docs" / document).read_text(encoding="utf-8")
    assert [word for word in words() if f"`{word}`" not in text] == []
