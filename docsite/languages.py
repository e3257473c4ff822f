"""An extension of Sphinx: the links between the languages, and the words of Chinese for Sphinx's search."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

from docsite.navigation import CHINESE, LANGUAGES


class SearchPairs(SearchEnglish):  # type: ignore[misc]
    """English words and pairs of Chinese characters: Sphinx's own search in Chinese needs a dictionary of words.

    A query's pairs that no page has are left out, because a page must have all words of a query.
    """

    lang = "zh"
    js_splitter_code = r"""
    function splitQuery(query) {
      const pairs = [...query.matchAll(/(?=(\p{Script=Han}{2}))/gu)].map((match) => match[1]);
      const words = query.replace(/\p{Script=Han}/gu, " ").match(/[\p{L}\p{N}_]+/gu) || [];
      return [...words, ...pairs.filter((pair) => pair in Search._index.terms)];
    }"""

    def split(self, text: str) -> list[str]:
        return [*re.findall(r"(?=([\u4e00-\u9fff]{2}))", text), *re.findall(r"[^\W\u4e00-\u9fff]+", text)]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("site_language", "en", "html")
    app.add_config_value("site_translated", [], "html")
    """The names of the pages that exist in the other language."""
    app.add_search_language(SearchPairs)
    app.connect("html-page-context", _add_context)
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
