"""What a person must learn for a change only becomes less: the ceilings in tests/repository/ceilings.toml only fall."""

import ast
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from pytest_flagperf.settings import OPTIONS
from tests.helpers.walk import git

REPO = Path(__file__).resolve().parents[2]
FILE = "tests/repository/ceilings.toml"
SLACK = 0.01
"""A ceiling may lie so much above what it bounds, as a share, so that not every change must lower it."""
TESTS = ("tests/**/*.py", "packages/*/*_tests/**/*.py", "suites/**/tests/**/*.py")
CORE = ("pytest_flagperf/**/*.py", "flagperf_driver/**/*.py")


def files(patterns: Iterable[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in REPO.glob(pattern)})


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def class_names(paths: Iterable[Path]) -> set[str]:
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {node.name for node in nodes if isinstance(node, ast.ClassDef)}


def walks(text: str) -> Iterator[tuple[str, int, list[Path]]]:
    """The title of each walk in a text, the number of modules in it, and the modules of the table below.

    A name without a folder is beside the one before it, else at the top of a package.
    """
    known = files((*CORE, "packages/*/pytest_flagperf_*/*.py"))
    for title, number, table in re.findall(r"\*\*(.+): (\d+) modules\.\*\*\n\n((?:\|.*\n)+)", text):
        passed: list[Path] = []
        for name in (name for row in table.splitlines() for name in re.findall(r"`([\w/]+)`", row.split("|")[1])):
            beside = [passed[-1].with_name(f"{name}.py")] if passed and "/" not in name else []
            at_top = [REPO / package / f"{name}.py" for package in ("pytest_flagperf", "flagperf_driver")]
            inside = [path for path in known if "/" in name and path.as_posix().endswith(f"/{name}.py")]
            found = [path for path in (*beside, *at_top, *inside) if path.is_file()]
            assert found, f"{title}: no module {name}"
            passed.append(found[0])
        yield title, int(number), passed


def measured() -> dict[str, int]:
    core = files(CORE)
    of_walks = [*walks((REPO / "docs/architecture.md").read_text(encoding="utf-8"))]
    assert [title for title, number, passed in of_walks if not len({*passed}) == len(passed) == number] == []
    return {
        "core_lines": lines(core),
        "test_lines": lines(files(TESTS)),
        "class_names": len(class_names(core)),
        "options": len(OPTIONS),
        **{f"walks.{title}": number for title, number, _ in of_walks},
    }


def ceilings(text: str) -> dict[str, int]:
    table = tomllib.loads(text)
    return {**{f"walks.{name}": count for name, count in table.pop("walks", {}).items()}, **table}


def problems(sizes: Mapping[str, int], limits: Mapping[str, int]) -> Iterator[str]:
    for name in sorted(sizes.keys() | limits.keys()):
        size, limit = sizes.get(name), limits.get(name)
        if size is None or limit is None:
            yield f"{name}: expected in {FILE} and in the project; got {limit} and {size}"
        elif size > limit:
            yield f"{name}: {size:,}; expected at most {limit:,}"
        elif limit - size > limit * SLACK:
            yield f"{name}: {size:,}; {FILE} allows {limit:,}: lower it"


def test_nothing_exceeds_its_ceiling() -> None:
    assert list(problems(measured(), ceilings((REPO / FILE).read_text(encoding="utf-8")))) == []


def test_a_size_above_and_far_below_its_ceiling_is_detected() -> None:
    sizes, limits = {"core_lines": 1001, "options": 42, "walks.a": 5}, {"core_lines": 1000, "options": 43, "walks.b": 5}
    assert list(problems(sizes, limits)) == [
        "core_lines: 1,001; expected at most 1,000",
        "options: 42; tests/repository/ceilings.toml allows 43: lower it",
        "walks.a: expected in tests/repository/ceilings.toml and in the project; got None and 5",
        "walks.b: expected in tests/repository/ceilings.toml and in the project; got 5 and None",
    ]
    assert not list(problems({"core_lines": 995}, {"core_lines": 1000}))


def test_a_walk_is_read_from_its_table() -> None:
    rows = "| modules | the value |\n|---|---|\n| `plan/make`, `ranks`, `rank_process` | a `Plan` |\n"
    ((title, number, passed),) = walks(f"**To a rank: 3 modules.**\n\n{rows}")
    names = [path.relative_to(REPO).as_posix() for path in passed]
    assert (title, number) == ("To a rank", 3)
    assert names == ["pytest_flagperf/plan/make.py", "pytest_flagperf/plan/ranks.py", "flagperf_driver/rank_process.py"]
    with pytest.raises(AssertionError, match="To a rank: no module plan/made"):
        list(walks(f"**To a rank: 3 modules.**\n\n{rows.replace('make', 'made')}"))


def raised_beside_other_files(folder: Path) -> Iterator[str]:
    """Yield the commits that raise a ceiling and change another file."""
    commits = git(folder, "log", "--no-merges", "--format=%H", "--", FILE).split()
    for commit, before in itertools.pairwise(commits):
        new, old = (ceilings(git(folder, "show", f"{one}:{FILE}")) for one in (commit, before))
        raised = [name for name, value in new.items() if value > old.get(name, value)]
        changed = git(folder, "show", "--format=", "--name-only", commit).split()
        if raised and changed != [FILE]:
            yield f"{commit[:12]} raises {', '.join(raised)} and changes other files"


@pytest.mark.skipif(not (REPO / ".git").exists(), reason="not a checkout")
def test_a_ceiling_is_raised_in_a_commit_of_its_own() -> None:
    assert list(raised_beside_other_files(REPO)) == []


def test_a_ceiling_raised_beside_other_changes_is_detected(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / FILE).parent.mkdir(parents=True)
    for number, (limit, other) in enumerate(((10, "a"), (9, "b"), (11, "b"), (12, "c"))):
        (tmp_path / FILE).write_text(f"options = {limit}\n")
        (tmp_path / "code.py").write_text(other)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", f"commit {number}")
    (found,) = raised_beside_other_files(tmp_path)
    assert found.endswith(" raises options and changes other files")
