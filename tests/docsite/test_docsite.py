"""The pages of the documentation site: their sources, links and navigation, and the code blocks in them."""

from pathlib import Path

import pytest

from docsite import pages
from docsite.navigation import CHINESE, ENGLISH, NAVIGATION

REPO = Path(__file__).resolve().parents[2]


def stage(tmp_path: Path, **texts: str) -> pages.Stage:
    made = {name: pages.Page(name, f"docs/{name}.md", text) for name, text in texts.items()}
    return pages.Stage(ENGLISH, tmp_path / "stage", made, {}, tmp_path)


def test_a_link_to_a_missing_file_is_an_error_but_not_in_code_and_an_ungrouped_page_is_last(tmp_path: Path) -> None:
    with pytest.raises(pages.PageError, match=r"docs/a.md: link target 'none.md' not found"):
        stage(tmp_path, a="# A\n\n[x](none.md)\n").write()
    one = stage(tmp_path, a="# A\n\n    [x](none.md)\n\n```sh\n[x](none.md)\n```\n")
    one.write()
    assert "[x](none.md)" in (one.folder / "a.md").read_text(encoding="utf-8")
    (*_, (title, names)) = stage(tmp_path, index="# I\n", brand_new="# N\n").navigation()
    assert (title, names[-1]) == (NAVIGATION[-1].english, "brand_new")


def test_pages_have_names_of_their_sources() -> None:
    names = {source: pages.page_name(source) for source in ("docs/a.zh.md", "suites/glm/README.md", "CONTRIBUTING.md")}
    assert list(names.values()) == ["a", "suites/glm/index", "contributing"]
    assert "docs/index.zh.md" in pages.sources(REPO, CHINESE)
