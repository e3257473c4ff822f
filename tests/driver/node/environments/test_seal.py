"""The seal of an environment finds every file that was planted, removed or changed, and accepts a copy."""

import os
import shutil
from pathlib import Path

import pytest

from flagperf_driver.node.environments import seal

SITE = "lib/python3.11/site-packages"
FILES = {
    "pyvenv.cfg": "include-system-site-packages = false\n",
    f"{SITE}/frame.py": "VERSION = 1\n",
    f"{SITE}/__pycache__/frame.cpython-311.pyc": "bytecode",
    f"{SITE}/own.pth": "./own\n",
    "bin/tool": "#!/bin/sh\n",
}


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    folder = tmp_path / "frame-1"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "bin" / "python").symlink_to("/usr/bin/python3")
    assert seal.write(folder) == len(FILES) + 1
    return folder


@pytest.mark.parametrize(
    "name",
    [
        f"{SITE}/sly.pth", f"{SITE}/sitecustomize.py", f"{SITE}/__pycache__/sly.cpython-311.pyc",
        f"{SITE}/new/deep/sly.so", "lib/python3.11/usercustomize.py", "bin/activate_this.py",
    ],
)  # fmt: skip
def test_a_planted_file_is_named(environment: Path, name: str) -> None:
    (environment / name).parent.mkdir(parents=True, exist_ok=True)
    (environment / name).write_text("import sly\n")
    assert seal.changes(environment) == [f"{name} was added"]


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_of_the_same_size_and_time_is_named(environment: Path, name: str) -> None:
    file = environment / name
    status, text = file.stat(), file.read_text()
    file.write_text(text[:-2] + "!" + text[-1])
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert seal.changes(environment) == [f"{name} was changed"]


def test_a_changed_file_with_links_elsewhere_is_named(environment: Path) -> None:
    """The tool uv links the files of its cache into the environments; they have the times of the cache."""
    os.link(environment / SITE / "own.pth", environment.parent / "in_uvs_cache")
    os.link(environment / SITE / "frame.py", environment.parent / "also")
    seal.write(environment)
    with (environment.parent / "also").open("a") as file:
        file.write("import sly\n")
    status = (environment.parent / "in_uvs_cache").stat()
    (environment.parent / "in_uvs_cache").write_text("./sly\n")
    os.utime(environment.parent / "in_uvs_cache", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert seal.changes(environment) == [f"{SITE}/frame.py was changed", f"{SITE}/own.pth was changed"]
    seal.write(environment)
    os.link(environment / SITE / "frame.py", environment.parent / "a_third")  # another environment is built
    assert seal.changes(environment) == []


def test_removed_files_and_other_targets_of_links_are_named(environment: Path) -> None:
    (environment / "bin" / "tool").unlink()
    (environment / "bin" / "python").unlink()
    (environment / "bin" / "python").symlink_to("/tmp/sly")
    assert seal.changes(environment) == ["bin/tool was removed", "bin/python was changed"]


def test_a_copy_is_unchanged_and_read_once(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "restored"
    shutil.copytree(environment, copy, symlinks=True, copy_function=shutil.copy)
    assert seal.changes(copy) == []
    read: list[str] = []
    digest = seal._digest

    def noted(file: Path) -> str:
        read.append(file.name)
        return digest(file)

    monkeypatch.setattr(seal, "_digest", noted)
    assert seal.changes(copy) == []
    assert sorted(read) == ["own.pth", "pyvenv.cfg"], "only what every Python reads when it starts"
    (copy / SITE / "frame.py").write_text("VERSION = 2\n")
    assert seal.changes(copy) == [f"{SITE}/frame.py was changed"]


@pytest.mark.parametrize("text", ["", "x\n", "x\n[]\n", 'x\n{"pyvenv.cfg": 3}\n', 'x\n{"pyvenv.cfg": []}\n', "\x00"])
def test_a_damaged_seal_is_a_change(environment: Path, text: str) -> None:
    (environment / seal.NAME).write_text(text)
    assert seal.changes(environment) != []


def test_an_environment_without_a_seal_is_changed(environment: Path) -> None:
    (environment / seal.NAME).unlink()
    assert seal.changes(environment) == ["it has no list of its files"]
