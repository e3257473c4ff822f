"""Build the site: ``python -m docsite [--to FOLDER]``. A warning of Sphinx is an error."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from docsite import pages, reference
from docsite.navigation import CHINESE, ENGLISH, Language

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docsite", description=__doc__)
    parser.add_argument("--to", type=Path, default=pages.REPO / "build" / "site", help="folder of the site")
    site: Path = parser.parse_args().to.resolve()
    code = build(site)
    if code == 0:
        print(f"open {site / 'index.html'}")
    return code


def build(site: Path) -> int:
    """Build both languages into a folder; return the exit code of Sphinx."""
    shutil.rmtree(site, ignore_errors=True)
    work = site.parent / f"{site.name}-work"
    english = pages.read_pages(pages.REPO, ENGLISH, reference.pages())
    chinese = pages.read_pages(pages.REPO, CHINESE, {})
    translated = sorted(english.keys() & chinese.keys())
    stage = pages.Stage(CHINESE, work / "zh", chinese, english)
    chinese["english"] = pages.Page(
        "english",
        "docs/english.zh.md",
        "# 仅有英文的页面\n\n以下页面尚未翻译。\n" + "".join(pages.without_translation(stage)),
    )
    for one in (pages.Stage(ENGLISH, work / "en", english, {}), stage):
        one.write()
        if code := _sphinx(one.language, one.folder, site, translated):
            return code
    return 0


def _sphinx(language: Language, source: Path, site: Path, translated: list[str]) -> int:
    target = site / language.folder
    settings = {
        "language": language.sphinx,
        "site_language": language.code,
        "site_translated": ",".join(translated),
    }
    code: int = build_main(
        [
            "--builder=html", "--conf-dir", str(HERE), "--doctree-dir", str(source.parent / f"trees-{language.code}"),
            "--fail-on-warning", "--keep-going", "--quiet", "--jobs=2",
            *(f"--define={key}={value}" for key, value in settings.items()),
            str(source), str(target),
        ]
    )  # fmt: skip
    return code


if __name__ == "__main__":
    sys.exit(main())
