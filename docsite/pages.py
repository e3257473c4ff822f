"""Stage the pages of one language: collect the sources, resolve their links, and add the navigation."""

from __future__ import annotations

import html
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from docsite.navigation import LANGUAGES, NAVIGATION, Group, Language

REPO = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_LISTS = ("suites/index", "vendors/index")
"""Pages whose text is the list of the pages below them."""
_SWITCH = re.compile(r"^\[(?:中文|English)\]\([\w.-]+\)\n\n", re.MULTILINE)
"""The link to the other language on a page of the repository; the site has its own in the sidebar."""
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


class PageError(Exception):
    """A page with a link that leads nowhere."""


@dataclass(frozen=True)
class Page:
    """A page of the site: its name without suffix, its source relative to the repository, and its text."""

    name: str
    source: str
    text: str

    @property
    def title(self) -> str:
        match = _TITLE.search(self.text)
        return match[1].replace("`", "") if match else self.name


def page_name(source: str) -> str:
    """Return the page of a Markdown file: docs/using.md -> using, suites/glm/README.md -> suites/glm/index."""
    path = PurePosixPath(source)
    stem = path.name.removesuffix(".md").removesuffix(".zh")
    if stem == "README":
        return str(path.parent / "index") if str(path.parent) != "." else "index"
    folder = path.parent.relative_to("docs") if path.parts[0] == "docs" else path.parent
    return str(folder / (stem.lower() if stem.isupper() else stem))


def sources(repo: Path, language: Language) -> list[str]:
    """Return the Markdown files of a language: docs/; in English also suites, vendors, packages and results."""
    patterns = ["docs/*.md"]
    if language.code == "en":
        patterns += ["suites/**/README.md", "vendors/*/README.md", "vendors/*/*/README.md"]
        patterns += ["packages/*/README.md", "reports/published/README.md", "benchmarks/README.md"]
        patterns += ["CONTRIBUTING.md", "CHANGELOG.md"]
    files = (file.relative_to(repo).as_posix() for pattern in patterns for file in repo.glob(pattern))
    return sorted(file for file in files if file.endswith(".zh.md") == (language.code == "zh"))


@dataclass
class Stage:
    """The pages of one language in a folder that Sphinx reads."""

    language: Language
    folder: Path
    pages: dict[str, Page]
    """By name."""
    elsewhere: Mapping[str, Page]
    """The English pages, for links of a Chinese page to a page without translation."""
    repo: Path = REPO

    def write(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        problems: list[str] = []
        for page in self.pages.values():
            text = self._resolved(page, problems) + self._toctrees(page)
            fields = ["orphan: true"] * self._is_orphan(page) + ["nosearch: true"] * (page.name == "changelog")
            if fields:
                text = "\n".join(["---", *fields, "---", "", text])
            target = self.folder / f"{page.name}.md"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        if problems:
            raise PageError("\n".join(problems))

    # -- links ---------------------------------------------------------------------------------------------------

    def _resolved(self, page: Page, problems: list[str]) -> str:
        """Return the text of a page whose relative links lead to pages and files of the site."""

        def replaced(match: re.Match[str]) -> str:
            image, words, target = match.groups()
            if _EXTERNAL.match(target) or target.startswith("#"):
                return match[0]
            path, hash_mark, place = target.partition("#")
            link = self._link(page, path, hash_mark + place, words, image)
            if link is None:
                problems.append(f"{page.source}: link target {target!r} not found")
                return match[0]
            return link

        return outside_code(_SWITCH.sub("", page.text), lambda line: _LINK.sub(replaced, line))

    def _link(self, page: Page, path: str, place: str, words: str, image: str) -> str | None:
        file = os.path.normpath(PurePosixPath(page.source).parent / path)
        if (self.repo / file).is_dir():
            readme = f"{file}/README.md"
            if not (self.repo / readme).is_file():
                return f"{words} (`{file}/`)"
            file = readme
        here = PurePosixPath(page.name).parent
        if file.endswith(".md"):
            name = page_name(file)
            of_english = not file.endswith(".zh.md")
            if name in self.pages and (of_english == (self.language.code == "en") or name not in self.elsewhere):
                return f"[{words}]({os.path.relpath(f'{name}.md', here)}{place})"
            if name in self.pages and of_english:
                return f"[{words}]({os.path.relpath(f'{name}.md', here)})"  # the translation; its headings differ
            if name in self.elsewhere:
                return self._foreign(here, f"{name}.html{place}", words)
            if file == f"docs/{name}.zh.md" and (self.repo / file).is_file():
                return f'<a href="{os.path.relpath(f"zh/{name}.html", here)}" hreflang="zh">{words}</a>'
            return None
        if not (self.repo / file).is_file():
            return None
        copy = self.folder / "files" / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.repo / file, copy)
        return f"{image}[{words}]({os.path.relpath(f'files/{file}', here)})"

    def _foreign(self, here: PurePosixPath, target: str, words: str) -> str:
        """A link to the English page, from a page of another language."""
        return f'<a href="{os.path.relpath(f"../{target}", here)}" hreflang="en">{words}</a>'

    # -- navigation ----------------------------------------------------------------------------------------------

    def _toctrees(self, page: Page) -> str:
        """Return what lists other pages below a page: the navigation, a hidden table of contents, or links."""
        if page.name == "index":
            return "".join(_toctree(names, caption) for caption, names in self.navigation())
        below = sorted(name for name in self.pages if name != page.name and self._parent(name) == page.name)
        if not below or page.name in _LISTS:
            return ""
        if page.name == "reference/index":
            return _toctree([f"/{name}" for name in below])
        here = PurePosixPath(page.name).parent
        links = (f"* [{self.pages[name].title}]({os.path.relpath(f'{name}.md', here)})\n" for name in below)
        return "\n## Pages in this folder\n\n" + "".join(links)

    def _is_orphan(self, page: Page) -> bool:
        """Return True if no table of contents has a page: the sidebar does not list each case of each vendor."""
        return page.name != "index" and self._parent(page.name) not in ("index", "reference/index")

    def _parent(self, name: str) -> str:
        """Return the page whose table of contents lists a page: the nearest index above it."""
        folder = PurePosixPath(name).parent
        if PurePosixPath(name).name == "index":
            folder = folder.parent
        while f"{folder}/index" not in self.pages and folder.name:
            folder = folder.parent
        return f"{folder}/index" if folder.name else "index"

    def navigation(self) -> list[tuple[str, list[str]]]:
        """Return the groups of the navigation; pages that no group names are in the last one."""
        listed = [(group, [name for name in group.pages if name in self.pages]) for group in NAVIGATION]
        named = {name for group, _ in listed for name in group.pages}
        rest = [name for name in self.pages if name not in named and name != "index" and self._parent(name) == "index"]
        last: Group = listed[-1][0]
        return [
            (group.title(self.language), names + (rest if group is last else []))
            for group, names in listed
            if names or (group is last and rest)
        ]


def _toctree(names: Iterable[str], caption: str = "") -> str:
    option = f":caption: {caption}\n" if caption else ""
    return "\n\n```{toctree}\n:hidden:\n" + option + "\n" + "\n".join(names) + "\n```\n"


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change the lines of a Markdown text that are in no fenced block and no indented block."""
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if mark:
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        lines.append(line if mark or fence or line.startswith("    ") else change(line))
    return "\n".join(lines) + "\n"


def without_translation(stage: Stage) -> Iterator[str]:
    """Yield the list of English pages that have no translation, in the order of the navigation."""
    for group in NAVIGATION:
        names = [name for name in group.pages if name in stage.elsewhere and name not in stage.pages]
        if names:
            yield f"\n## {group.title(stage.language)}\n\n"
        for name in names:
            title = html.escape(stage.elsewhere[name].title)
            yield f'* <a href="../{name}.html" hreflang="en">{title}</a>\n'


def read_pages(repo: Path, language: Language, generated: Mapping[str, str]) -> dict[str, Page]:
    """Return the pages of a language by name: the files of the repository, and the pages generated from the code."""
    pages = {}
    for source in sources(repo, language):
        pages[page_name(source)] = Page(page_name(source), source, (repo / source).read_text(encoding="utf-8"))
    for name, text in generated.items():
        pages[name] = Page(name, f"docs/{name}.md", text)
    return pages


__all__ = ["LANGUAGES", "REPO", "Page", "PageError", "Stage", "page_name", "read_pages", "without_translation"]
