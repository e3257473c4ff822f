"""``tools.affected``: the vendors' folders that a change of a standard case affects, in real repositories."""

import subprocess
from pathlib import Path

import pytest

from tests.helpers.trees import tree, write, write_suite, write_vendor
from tools import affected, run_tool

Capture = pytest.CaptureFixture[str]


def git(root: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two suites; one vendor has a folder for the first, another for both, a third for neither."""
    tmp_path = tmp_path / "small"
    tree(tmp_path)
    write_suite(tmp_path, "other")
    for name in ("bolt", "corp"):
        write_vendor(tmp_path, name)
    for folder in ("toy-pytorch", "other-pytorch"):
        write(tmp_path, f"vendors/bolt/{folder}/config/config_X9x1x8.py", "")
    for name in ("shares.py", "images/__init__.py", "images/folders.py", "language/__init__.py"):
        write(tmp_path, f"suites/common/{name}", "")
    toml = tmp_path / "suites/toy/pytorch/suite.toml"
    toml.write_text('common = ["images"]\n' + toml.read_text())
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: Capture, *words: str, code: int = 0) -> list[str]:
    assert run_tool(affected, words) == code
    out, err = capsys.readouterr()
    return (err if code else out).splitlines()


def change(root: Path, name: str) -> None:
    with (root / name).open("a") as file:
        file.write("\n# changed\n")


@pytest.mark.parametrize("name", ["config/_base.py", "suite.toml", "new.py"])
def test_the_folders_of_the_vendors_that_have_the_case_are_listed(root: Path, capsys: Capture, name: str) -> None:
    assert printed(capsys) == ["no standard case changed since HEAD"]
    change(root, f"suites/toy/pytorch/{name}")
    assert printed(capsys) == [
        f"suites/toy/pytorch: changed: suites/toy/pytorch/{name}",
        "  affects vendors/acme/toy-pytorch",
        "  affects vendors/bolt/toy-pytorch",
    ]


@pytest.mark.parametrize("name", ["README.md", "config/_small.py", "reference/small.json", "tests/toy.py"])
def test_files_that_no_vendors_results_depend_on_affect_nothing(root: Path, capsys: Capture, name: str) -> None:
    write(root, f"suites/toy/pytorch/{name}", "# changed\n")
    change(root, "vendors/acme/toy-pytorch/config/config_X9x1x8.py")
    assert printed(capsys) == ["no standard case changed since HEAD"]


def test_a_branch_is_compared_with_the_commit_where_it_began(root: Path, capsys: Capture) -> None:
    """Later commits to main are not changes of the branch."""
    git(root, "switch", "-qc", "mine")
    change(root, "suites/toy/pytorch/suite.toml")
    git(root, "commit", "-qam", "mine")
    git(root, "switch", "-q", "main")
    change(root, "suites/other/pytorch/suite.toml")
    git(root, "commit", "-qam", "theirs")
    git(root, "switch", "-q", "mine")
    lines = printed(capsys, "--since=main")
    assert lines[0] == "suites/toy/pytorch: changed: suites/toy/pytorch/suite.toml"
    assert "other" not in "".join(lines)


def test_shared_files_affect_their_users_and_an_unknown_revision_is_an_error(root: Path, capsys: Capture) -> None:
    change(root, "suites/common/language/__init__.py")
    assert printed(capsys) == ["no standard case changed since HEAD"]
    change(root, "suites/common/images/folders.py")
    assert printed(capsys) == [
        "suites/toy/pytorch: changed: suites/common/images/folders.py",
        "  affects vendors/acme/toy-pytorch",
        "  affects vendors/bolt/toy-pytorch",
    ]
    change(root, "suites/common/shares.py")
    assert "  affects vendors/bolt/other-pytorch" in printed(capsys)
    (line,) = printed(capsys, "--since=nowhere", code=2)
    assert line.startswith(f"flagperf: git merge-base failed in {root}: ")
    assert "nowhere" in line
