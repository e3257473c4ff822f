"""The documents say what is true: their links lead somewhere, and every option is told."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pytest_flagperf.settings import OPTIONS, Option

REPO = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
PLACE = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def documents() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    return [REPO / name for name in listed.splitlines()]


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(REPO)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    assert [target for target in targets if not (document.parent / target).exists()] == []


def anchors(document: Path) -> set[str]:
    """What can be linked to in a document, as GitHub names it."""
    headings = HEADING.findall(document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(REPO)))
def test_links_into_a_document_lead_to_a_heading(document: Path) -> None:
    targets = PLACE.findall(document.read_text(encoding="utf-8"))
    assert [
        (name, place)
        for name, place in targets
        if name.endswith(".md") or not name
        if place not in anchors(document.parent / name if name else document)
    ] == []


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_told(option: Option) -> None:
    assert f"--{option.name}" in (REPO / "docs" / "using.md").read_text(encoding="utf-8")


def test_no_option_is_told_that_does_not_exist() -> None:
    told = set(re.findall(r"`--([a-z-]+)", (REPO / "docs" / "using.md").read_text(encoding="utf-8")))
    known = {option.name for option in OPTIONS} | {f"no-{option.name}" for option in OPTIONS if option.flag}
    known |= {"strict", "verbose", "help", "repeat"}
    assert told <= known


def test_readme_begins_with_the_two_commands() -> None:
    for name in ("README.md", "README.zh.md"):
        commands = re.findall(r"^    (\S.*?)(?:  .*)?$", (REPO / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert commands[:2] == ["make bench", "make test"], name
