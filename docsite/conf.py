"""The configuration of Sphinx; ``__main__`` sets ``language`` for each of the two builds."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

project = "pytest-flagperf"
author = "the authors of pytest-flagperf"
version = release = version_of("pytest-flagperf")
project_copyright = "Apache-2.0"
html_show_copyright = html_show_sphinx = html_copy_source = html_show_sourcelink = False
extensions = ["myst_parser", "docsite.languages"]
myst_heading_anchors = 6
myst_enable_extensions = ["html_image"]
highlight_language = "text"
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
templates_path = [str(HERE / "templates")]
html_static_path = [str(HERE / "static")]
html_theme = "furo"
html_title = project
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(HERE / "static" / "scorer.js")
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "languages.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_use_index = False
