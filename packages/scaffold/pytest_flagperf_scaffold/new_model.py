"""Create the folder of a new model as a copy of a suite, which trains at once; change nothing outside it.

The copy has no reference curves, no names of FlagPerf, no results, no FLOPs per sample, no goal and no checks of the
model's own: these belong to the copied model. Without flops_per_sample a case has no MFU, and its plan says so.
docs/how-to-model.md describes the next steps.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flagperf.catalog import FOLDER_NAME, FOLDER_NAME_RULE, Catalog, CatalogError, Suite
from pytest_flagperf.commands import tree
from pytest_flagperf.kind import kind_of
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.stored.plan import TRAINING

from . import skeletons

_NOT_COPIED = ("README.md", "reference", "config/original.toml", "__pycache__")
"""What belongs to the copied model alone, and compiled code."""
_OTHERS_FIGURES = re.compile(r"^flops_per_sample\b.*\n|^\[goal\].*\n(?:(?!\[).*\n)*", re.MULTILINE)
"""Figures in suite.toml that were counted or published for the copied model."""
_TO_CHANGE = {
    "model.py": r"create_model|calculate_loss|evaluate_batch|summarize|compile_model|prepare_batch",
    "config/_base.py": "",
    "config/_small.py": "",
    "suite.toml": "target|original_name",
    "tests/reference.py": "SMALLER|CUT|PARAMETERS|STEP|UNTRAINED|FROZEN|OTHER|published|write|judge",
}
"""What describes the copied model, by file, in the order of the guide; a config has the keys that model.py reads,
and how often a training is evaluated."""


EXAMPLE = "mixer --like=resnet50"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of its folder and in cases: lowercase letters, digits and _")
    parser.add_argument("--like", metavar="MODEL", required=True, help="the model whose suite is copied")
    parser.add_argument(
        "--framework", metavar="NAME", default="pytorch", help="the framework of both suites (default: pytorch)"
    )


def run(arguments: argparse.Namespace) -> int:
    root = tree.root().resolve()
    catalog = tree.catalog(root)
    name: str = arguments.name
    like = _checked(root, catalog, arguments)
    folder = root / "suites" / name
    suite = folder / like.framework
    with skeletons.new_directory(folder) as temporary:
        _copy_suite(like, temporary / like.framework)
        dropped = _drop_figures(temporary / like.framework / "suite.toml")
        for path, text in _texts(name, like.framework):
            (temporary / path).write_text(text, encoding="utf-8")
    print("\n".join(_report(folder, like, catalog)))
    if dropped:
        print(f"Not copied, because they are figures of {like.model}: {', '.join(dropped)}; set them in suite.toml")
    print("The copy trains, and its checks pass:")
    print(f"  pytest suites/{name} --nodes=1x1")
    print(f"  pytest tests/suites/test_checks.py -k {name}")
    print(f"Then replace {like.model}, as docs/how-to-model.md describes, at these lines and in this order:")
    print("\n".join(_lines_to_change(suite, like.model)))
    return 0


def _checked(root: Path, catalog: Catalog, arguments: argparse.Namespace) -> Suite:
    """Return the suite to copy; raise Problems with all invalid options."""
    problems = [*_name_problems(root, catalog, arguments.name)]
    try:
        like = catalog.suite(arguments.like, arguments.framework)
    except CatalogError as error:
        raise Problems([*problems, *(f"--like={arguments.like}: {problem}" for problem in error.problems)]) from None
    if like.kind != TRAINING:
        how = f"; {guide} describes how to add one" if (guide := kind_of(like).guide) else ""
        problems.append(f"--like={arguments.like}: this suite is a {like.kind}, not a training{how}")
    if like.root.resolve() != root:
        problems.append(
            f"--like={arguments.like}: this suite is in {like.root}, the current tree is {root}; a suite needs the"
            " shared code of its own tree: run this command in a checkout that contains the suite"
        )
    if problems:
        raise Problems(problems)
    return like


def _name_problems(root: Path, catalog: Catalog, name: str) -> Iterator[str]:
    existing = [suite.path.parent for suite in catalog.suites.values() if suite.model.lower() == name.lower()]
    folder = root / "suites" / name
    if not FOLDER_NAME.fullmatch(name):
        yield f"{name!r}: {FOLDER_NAME_RULE}"
    elif existing:
        yield f"model {name!r} already exists: {existing[0]}"
    elif folder.exists():
        yield f"{name!r}: {folder} already exists; choose another name"


# -- files -------------------------------------------------------------------------------------------------


def _copy_suite(like: Suite, folder: Path) -> None:
    left_out = {*_NOT_COPIED, f"tests/{like.model}.py"}

    def skipped(directory: str, names: Sequence[str]) -> list[str]:
        paths = {name: (Path(directory) / name).relative_to(like.path).as_posix() for name in names}
        return [name for name, path in paths.items() if name[0] == "." or {name, path} & left_out]

    shutil.copytree(like.path, folder, ignore=skipped)


def _drop_figures(file: Path) -> list[str]:
    """Remove the figures of the copied model from suite.toml, and return their names."""
    text = file.read_text(encoding="utf-8")
    names = [found.split()[0] for found in _OTHERS_FIGURES.findall(text)]
    file.write_text(_OTHERS_FIGURES.sub("", text).rstrip("\n") + "\n", encoding="utf-8")
    return list(dict.fromkeys(names))


def _texts(name: str, framework: str) -> Iterator[tuple[str, str]]:
    class_name = "".join(map(str.capitalize, name.split("_")))
    yield f"test_{name}.py", skeletons.filled("test_model.py", {"class_name": class_name})
    yield "README.md", skeletons.of_model(name)
    yield f"{framework}/README.md", skeletons.of_suite(f"{name}:{framework}")


# -- output ------------------------------------------------------------------------------------------------


def _report(folder: Path, like: Suite, catalog: Catalog) -> Iterator[str]:
    yield from skeletons.created(folder)
    others = sorted({suite.model for suite in catalog.suites.values()} - {like.model})
    if similar := near(folder.name, others):
        yield f"note: a model with a similar name exists{similar}"


def _lines_to_change(suite: Path, model: str) -> Iterator[str]:
    """Yield for each file the lines that define the copied model, and those with its name, however it is written."""
    named = re.compile(r"[-_ ]?".join(map(re.escape, model)), re.IGNORECASE)
    code = suite / "model.py"
    read = re.findall(r"\bconfig\.(\w+)", code.read_text(encoding="utf-8")) if code.is_file() else []
    keys = "|".join([*read, "eval_samples"])
    files = [path.relative_to(suite).as_posix() for path in sorted(suite.rglob("*")) if path.suffix in (".py", ".toml")]
    for name in dict.fromkeys([*_TO_CHANGE, *files]):
        if name not in files:
            continue
        definition = re.compile(rf"(?:def )?({_TO_CHANGE.get(name) or keys})\b")
        lines = [*enumerate((suite / name).read_text(encoding="utf-8").splitlines(), 1)]
        defined = [f"{found[1]} {number}" for number, line in lines if (found := definition.match(line))]
        texts = [str(number) for number, line in lines if named.search(line)]
        if words := [*defined, *([f"texts {' '.join(texts)}"] if texts else [])]:
            yield f"  {suite.name}/{name}: {', '.join(words)}"
