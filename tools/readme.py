"""Write the generated sections of the READMEs: models, chips, configs and published results.

A missing README of a suite or of a vendor's case is created first. Text outside the generated sections never
changes. Each value that a vendor's config changes needs a reason in the README: a line "- `key`: REASON".
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from pytest_flagperf.catalog import Catalog, Suite
from pytest_flagperf.commands import tree
from pytest_flagperf.problems import Problems
from pytest_flagperf.stored import write_text
from pytest_flagperf_scaffold import skeletons
from tools import markers, run_tool, sections, vendor_sections
from tools.documented_tree import Tree, VendorCase

_T = TypeVar("_T")
_REASON = re.compile(r"^- (`\w+`(?:, `\w+`)*):", re.MULTILINE)
_Sections = Mapping[str, Callable[[], str]]
OF_SUITE: Mapping[str, Callable[[Tree, Path, Suite], str]] = {
    "case": sections.case,
    "results": sections.suite_results,
}
_OF_VENDOR_CASE: Mapping[str, Callable[[Tree, Path, VendorCase], str]] = {
    "environment": vendor_sections.environment,
    "run": vendor_sections.run,
    "config": vendor_sections.config,
    "results": sections.vendor_results,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    roots = "the folder with suites/ and vendors/ (default: the current tree)"
    parser.add_argument("root", metavar="ROOT", type=Path, nargs="?", help=roots)
    tree.add_roots(parser)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a section is out of date")


@dataclass(frozen=True)
class _Document:
    """A README, its generated sections, and the config keys that must have a reason in it or must not have one."""

    file: Path
    sections: _Sections
    """Functions that return the text of each section; called late, since texts link to READMEs created before."""
    skeleton: str = ""
    changed: Sequence[str] = ()
    unchanged: Sequence[str] = ()

    @cached_property
    def texts(self) -> dict[str, str]:
        return {name: make() for name, make in self.sections.items()}

    def create_if_missing(self) -> None:
        """Write the skeleton if the README does not exist."""
        if not self.file.is_file():
            write_text(self.file, self.skeleton)


def run(arguments: argparse.Namespace) -> int:
    root: Path = arguments.root or tree.root()
    if not root.is_dir():
        raise Problems([f"{root}: no such directory"])
    root = root.resolve()
    others = [Path(folder) for folder in arguments.roots or ()]
    documents = list(_documents(Tree(root, Catalog.scan([root, *others]))))
    if not documents:
        raise Problems([f"{root}: no suites and no vendors' cases; expected suites/ or vendors/ in this folder"])
    problems = _handle(root, documents, _check) if arguments.check else _write(root, documents)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{len(documents)} READMEs are up to date")
    return 1 if problems else 0


def write_sections(root: Path) -> list[str]:
    """Write the generated sections of all READMEs in a tree; return their problems."""
    return _write(root, list(_documents(Tree(root, Catalog.scan([root])))))


def _write(root: Path, documents: Sequence[_Document]) -> list[str]:
    for document in documents:
        document.create_if_missing()
    return _handle(root, documents, _update)


def _handle(root: Path, documents: Sequence[_Document], handle: Callable[[_Document], list[str]]) -> list[str]:
    return [f"{document.file.relative_to(root)}: {problem}" for document in documents for problem in handle(document)]


def _documents(source_tree: Tree) -> Iterator[_Document]:
    yield from _readmes_of_root(source_tree)
    yield from _documents_of_models(source_tree)
    for vendor_case in source_tree.vendor_cases():
        file = vendor_case.folder / "README.md"
        skeleton = skeletons.of_vendor_case(vendor_case.suite.name, vendor_case.vendor.toml.name)
        texts = _bound(_OF_VENDOR_CASE, source_tree, file, vendor_case)
        yield _Document(
            file,
            texts,
            skeleton,
            vendor_sections.changed_keys(vendor_case),
            vendor_sections.unchanged_keys(vendor_case),
        )


def _documents_of_models(source_tree: Tree) -> Iterator[_Document]:
    for model in dict.fromkeys(suite.model for suite in source_tree.suites):
        suites = [suite for suite in source_tree.suites if suite.model == model]
        file = suites[0].path.parent / "README.md"
        yield _Document(file, {"chips": partial(sections.chips, source_tree, file, suites)}, skeletons.of_model(model))
    for suite in [*source_tree.suites, *source_tree.measurements, *source_tree.served]:
        file = suite.path / "README.md"
        yield _Document(file, _bound(OF_SUITE, source_tree, file, suite), skeletons.of_suite(suite.name))


def _bound(
    makers: Mapping[str, Callable[[Tree, Path, _T], str]], source_tree: Tree, file: Path, about: _T
) -> _Sections:
    return {name: partial(make, source_tree, file, about) for name, make in makers.items()}


def _readmes_of_root(source_tree: Tree) -> Iterator[_Document]:
    """Yield the READMEs of the root and of the published results, and pages of docs/, if they have sections."""
    makers = {
        "models": sections.models,
        "vendors": sections.vendors,
        "items": sections.items,
        "measurements": sections.measurements,
        "served": sections.served,
    }
    of_file = {
        "README*.md": ["models"],
        "docs/support*.md": ["models", "vendors"],
        "docs/machine.md": ["measurements"],
        "packages/serving/README.md": ["served"],
        "reports/published/README.md": ["items"],
    }
    for file, names in sorted(
        (file, names) for pattern, names in of_file.items() for file in source_tree.root.glob(pattern)
    ):
        if markers.has_sections(markers.read_document(file)):
            language = "zh" if file.name.endswith(".zh.md") else "en"
            yield _Document(file, {name: partial(makers[name], source_tree, file, language) for name in names})


def _check(document: _Document) -> list[str]:
    if not document.file.is_file():
        return ["no such file; run: python -m tools.readme"]
    text = markers.read_document(document.file)
    problems = markers.marker_problems(text, document.sections)
    stale = [] if problems else markers.stale(text, document.texts)
    outdated = [f"section {name} is out of date; run: python -m tools.readme" for name in stale]
    return [*problems, *outdated, *_reason_problems(document, text)]


def _update(document: _Document) -> list[str]:
    text = markers.read_document(document.file)
    if problems := markers.marker_problems(text, document.sections):
        return problems
    filled = markers.filled(text, document.texts)
    if filled != text:
        write_text(document.file, filled)
    return _reason_problems(document, filled)


def _reason_problems(document: _Document, text: str) -> list[str]:
    """Return a problem for each changed value without a reason, and for each reason without a changed value."""
    own = markers.hand_written(text)
    given = {key for keys in _REASON.findall(own) for key in keys.strip("`").split("`, `")}
    missing = [
        f'no reason for the changed value of {key}: add the line "- `{key}`: REASON" outside the generated sections'
        for key in document.changed
        if key not in given
    ]
    return missing + [f"no config here changes {key}: remove the reason" for key in document.unchanged if key in given]


if __name__ == "__main__":
    sys.exit(run_tool(sys.modules[__name__]))
