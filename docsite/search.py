"""An extension of Sphinx: write the text of every section for the search, and the links between the languages.

The page of the search ranks the sections with MiniSearch. Sphinx's own search finds only pages that contain every
word of the query, and does not count how often.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from docsite.navigation import CHINESE, LANGUAGES

SECTIONS = "search-sections.json"
SCRIPT = "_static/search-sections.js"
_WORDS = {
    "en": {
        "title": "Search",
        "hint": "words, an option, or a message",
        "noscript": "The search needs JavaScript.",
        "none": "No page found. Try fewer or other words.",
        "few": "pages found: {}",
        "many": "{} pages found; the best 20:",
    },
    "zh": {
        "title": "搜索",
        "hint": "关键词、选项或错误信息",
        "noscript": "搜索需要 JavaScript。",
        "none": "没有找到页面，请换用其他关键词。",
        "few": "找到 {} 个页面",
        "many": "找到 {} 个页面；最相关的 20 个：",
    },
}


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("site_language", "en", "html")
    app.add_config_value("site_translated", [], "html")
    """The names of the pages that exist in the other language."""
    app.connect("html-page-context", _add_context)
    app.connect("build-finished", _write_sections)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add_context(app: Sphinx, pagename: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    code = app.config.site_language
    up = posixpath.relpath(".", posixpath.dirname(pagename) or ".")
    target = f"{pagename}.html" if pagename in app.config.site_translated or pagename == "search" else "index.html"
    context["languages"] = [
        {
            "code": language.code,
            "title": language.title,
            "current": language.code == code,
            "href": f"{up}/{'zh/' if language is CHINESE else '../'}{target}",
        }
        for language in LANGUAGES
    ]
    context["navigation_label"] = "导航" if code == "zh" else "Navigation"
    context["languages_label"] = "语言" if code == "zh" else "Language"
    if pagename == "search":
        # Sphinx's stop words and stemmer of English; the words of Chinese are pairs of characters.
        english = "../_static" if code == "zh" else "_static"
        scripts = [f"{english}/{name}.js" for name in ("base-stemmer", "english-stemmer", "language_data")]
        context["search_scripts"] = [*scripts, "_static/minisearch.js", SCRIPT, "_static/search.js"]
        context["search_words"] = _WORDS[code]


def _write_sections(app: Sphinx, error: Exception | None) -> None:
    """Write the sections of all pages; a Chinese site also has the English pages that are not translated."""
    if error is not None or app.builder.name != "html":
        return
    sections = [section for name in sorted(app.env.found_docs) for section in _sections(app, name)]
    if app.config.site_language == "zh":
        english = json.loads((Path(app.outdir).parent / SECTIONS).read_text(encoding="utf-8"))
        own = {section["page"] for section in sections}
        sections += [{**one, "url": f"../{one['url']}", "english": True} for one in english if one["page"] not in own]
    else:
        (Path(app.outdir) / SECTIONS).write_text(json.dumps(sections, ensure_ascii=False), encoding="utf-8")
    text = json.dumps(sections, ensure_ascii=False, separators=(",", ":"))
    (Path(app.outdir) / SCRIPT).write_text(f"window.siteSections = {text};\n", encoding="utf-8")


def _sections(app: Sphinx, name: str) -> Iterator[dict[str, Any]]:
    """Yield the sections of a page, each with its own text, without that of the sections in it."""
    title = app.env.titles[name].astext()
    for number, section in enumerate(app.env.get_doctree(name).findall(nodes.section)):
        heading = section.next_node(nodes.title)
        own = [node for node in section.children if not isinstance(node, (nodes.section, nodes.title))]
        text = " ".join(_text(node) for node in own)
        anchor = f"#{section['ids'][0]}" if number and section["ids"] else ""
        yield {
            "page": name,
            "url": f"{name}.html{anchor}",
            "title": title,
            "heading": heading.astext() if heading is not None and number else "",
            "keys": " ".join(_keys(own)),
            "text": re.sub(r"\s+", " ", text).strip(),
        }


def _keys(own: Iterable[nodes.Node]) -> Iterator[str]:
    """Yield what the rows of tables define: the code in their first cells."""
    for node in own:
        for row in node.findall(nodes.row):
            cell = row.next_node(nodes.entry)
            yield from (code.astext() for code in cell.findall(nodes.literal)) if cell is not None else ()


def _text(node: nodes.Node) -> str:
    """Return the visible text of a node, with blanks between its parts."""
    return " ".join(part.astext() for part in node.findall(nodes.Text) if not isinstance(part.parent, nodes.raw))
