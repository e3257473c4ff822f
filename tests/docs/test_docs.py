"""The documents are correct: links and paths exist, and every option is described."""

import re
import subprocess
from pathlib import Path

from pytest_flagperf.settings import COMMAND_LINE_OPTIONS, OPTIONS, SITE

REPO = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def documents() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    return [REPO / name for name in listed.splitlines()]


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, by GitHub's rules."""
    headings = HEADING.findall(document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document: Path) -> list[str]:
    """The relative links of a document that lead to no file or to no heading of a document."""
    dead = []
    for name, place in LINK.findall(document.read_text(encoding="utf-8")):
        target = document.parent / name if name else document
        if not target.exists() or (place and target.suffix == ".md" and place not in anchors(target)):
            dead.append(f"{name}#{place}" if place else name)
    return dead


def test_links_lead_to_files_and_headings(tmp_path: Path) -> None:
    assert {document: dead for document in documents() if (dead := dead_links(document))} == {}
    (tmp_path / "a.md").write_text("# A b\n[](#a-b) [](a.md#a-b) [](#c) [](a.md#d) [](e.md) [](https://e)\n")
    assert dead_links(tmp_path / "a.md") == ["#c", "a.md#d", "e.md"]


def test_described_options_exist_and_a_table_lists_the_settings_of_a_site() -> None:
    text = (REPO / "docs" / "using.md").read_text(encoding="utf-8")
    table = text.partition("\n### flagperf.toml\n")[2].partition("\n#")[0]
    listed = re.findall(r"^\| `([a-z-]+)[^`]*` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted({option.name for option in OPTIONS if option.group == SITE})
    described = set(re.findall(r"`--([a-z-]+)", text))
    options = COMMAND_LINE_OPTIONS
    known = {option.name for option in options} | {f"no-{option.name}" for option in options if option.flag}
    known |= {"strict", "verbose", "help", "repeat", "log-level", "log-file"}
    assert described <= known


def test_the_paths_to_open_exist() -> None:
    text = (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("\n## To change X, open Y\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \|$", table, re.MULTILINE)
    paths = [path for row in rows for path in re.findall(r"`([^`]+)`", row)]
    assert len(paths) >= 25
    assert [path for path in paths if not (REPO / path).exists()] == []
