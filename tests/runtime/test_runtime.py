"""The ranks' Python: built once for each content, or the host's own; and clear errors if neither works."""

from __future__ import annotations

import ensurepip
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import venv as venv_module
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from packaging.requirements import Requirement

from flagperf_driver.node.temporary import user_packages
from flagperf_driver.ports import free_port
from flagperf_driver.rank_process import RankProcess
from pytest_flagperf.hosts import Completed, Host
from pytest_flagperf.hosts.deploy import open_module, pack
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.hosts.ssh import ssh_hosts
from pytest_flagperf.packages import PackageMissing, uv_program
from pytest_flagperf.runtime import Interpreter, RuntimeRequest, RuntimeSetupError, runtimes
from pytest_flagperf.runtime.pip_settings import index_settings
from pytest_flagperf.runtime.requirements import conflicting, union
from pytest_flagperf.runtime.venv import _WRITE, _uv, _write_program
from pytest_flagperf.runtime.wheel_folder import requirement_text, with_dependencies
from tests.helpers.package_index import PackageIndex, package_index
from tests.helpers.trees import write
from tests.helpers.waiting import until

pytestmark = pytest.mark.integration

if TYPE_CHECKING:
    from tests.lab.lab import Lab

HOST = LocalHost("here")
CODE = pack({})


def venv(there: Host, required: RuntimeRequest, progress: Callable[[str], None]) -> Interpreter:
    return runtimes()["venv"].prepare(there, required, progress, CODE)


def host(there: Host, required: RuntimeRequest, progress: Callable[[str], None]) -> Interpreter:
    return runtimes()["host"].prepare(there, required, progress, CODE)


def quiet(_: str) -> None:
    pass


def write_wheel(folder: Path, name: str, version: str, more: str = "") -> None:
    info = f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def required(tmp_path: Path, fresh_cache: None, monkeypatch: pytest.MonkeyPatch) -> RuntimeRequest:
    """A framework of one small package from a folder, without the network."""
    write_wheel(tmp_path / "wheels", "frame", "1.0")
    write_wheel(tmp_path / "wheels", "frame", "2.0")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    return RuntimeRequest("frame", (requirements(tmp_path, "one.txt", "frame==1.0"),))


def requirements(folder: Path, name: str, *lines: str) -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


def environments(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache" / "venv").glob("*") if path.is_dir()}


def ask(python: str, question: str) -> str:
    return subprocess.run([python, "-c", question], capture_output=True, text=True, check=True).stdout.strip()


def test_an_environment_is_built_once_and_shows_its_progress(required: RuntimeRequest, tmp_path: Path) -> None:
    messages: list[str] = []
    first = venv(HOST, required, messages.append)
    assert [*Path(first.python).parents[1].rglob("frame*.pyc")], "bytecode, before any rank imports the framework"
    assert ask(first.python, "import frame; print(frame.VERSION)") == "1.0"
    assert first.details["frame"] == "1.0"
    assert first.details["python"] == ask(first.python, "import platform; print(platform.python_version())")
    assert messages[0].startswith("building the frame environment in ")
    assert "+ frame==1.0" in messages
    messages.clear()
    assert venv(HOST, required, messages.append) == first
    assert messages == []


def test_a_look_finds_what_is_ready_and_builds_nothing(required: RuntimeRequest, tmp_path: Path) -> None:
    assert runtimes()["venv"].look(HOST, required, CODE) is None
    assert environments(tmp_path) == set()
    ready = venv(HOST, required, quiet)
    assert runtimes()["venv"].look(HOST, required, CODE) == ready


def test_other_content_is_another_environment(
    required: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pythons = {venv(HOST, required, quiet).python}
    other = requirements(tmp_path, "two.txt", "frame==2.0")
    pythons.add(venv(HOST, replace(required, requirements=(other,)), quiet).python)
    monkeypatch.setenv("UV_TORCH_BACKEND", "cpu")
    pythons.add(venv(HOST, required, quiet).python)
    assert len(pythons) == 3
    monkeypatch.setenv("UV_CONCURRENT_DOWNLOADS", "3")  # changes the download, not the packages
    comment = requirements(tmp_path, "three.txt", "# the same", "", "frame==1.0  # again")
    pythons.add(venv(HOST, replace(required, requirements=(comment,)), quiet).python)
    assert len(pythons) == 3


def test_a_failed_build_is_removed_and_explained(required: RuntimeRequest, tmp_path: Path) -> None:
    missing = requirements(tmp_path, "bad.txt", "frame==3.0")
    with pytest.raises(RuntimeSetupError) as caught:
        venv(HOST, replace(required, requirements=(missing,)), quiet)
    text = str(caught.value)
    assert "uv pip failed with exit code 1" in text
    assert "frame==3.0" in text  # uv's message
    log = text.split("all of them: ")[1].split(")")[0]
    assert "frame==3.0" in Path(log).read_text()
    assert environments(tmp_path) == set()
    assert venv(HOST, required, quiet).details["frame"] == "1.0"  # control


def test_a_partial_environment_is_built_again(required: RuntimeRequest) -> None:
    folder = Path(venv(HOST, required, quiet).env["VIRTUAL_ENV"])
    (folder / "complete.json").unlink()
    (folder / "rubbish").touch()
    messages: list[str] = []
    venv(HOST, required, messages.append)
    assert messages[0].startswith("building")
    assert not (folder / "rubbish").exists()


@pytest.mark.parametrize("planted", ["sly.pth", "sitecustomize.py", "__pycache__/sly.pyc"])
def test_a_changed_environment_is_named_and_built_anew(required: RuntimeRequest, planted: str) -> None:
    made = venv(HOST, required, quiet)
    assert runtimes()["venv"].is_unchanged(HOST, made, CODE)
    (site,) = Path(made.env["VIRTUAL_ENV"]).glob("lib/*/site-packages")
    (site / planted).write_text("import sly\n")
    assert not runtimes()["venv"].is_unchanged(HOST, made, CODE)
    assert runtimes()["venv"].look(HOST, required, CODE) is None
    messages: list[str] = []
    assert venv(HOST, required, messages.append) == made
    name = Path(made.env["VIRTUAL_ENV"]).name
    place = (site / planted).relative_to(made.env["VIRTUAL_ENV"])
    assert messages[0] == f"warning: {name} changed after it was built ({place} was added): building it anew"
    assert not (site / planted).exists()
    assert runtimes()["venv"].is_unchanged(HOST, made, CODE)


def test_ranks_add_no_bytecode_to_the_environment(required: RuntimeRequest) -> None:
    made = venv(HOST, required, quiet)
    (site,) = Path(made.env["VIRTUAL_ENV"]).glob("lib/*/site-packages")
    shutil.rmtree(site / "__pycache__")
    subprocess.run([made.python, "-c", "import frame"], env={**os.environ, **made.env}, check=True)
    assert not (site / "__pycache__").exists()


def test_a_build_ends_in_time_and_needs_a_python_that_works(required: RuntimeRequest, tmp_path: Path) -> None:
    with pytest.raises(RuntimeSetupError, match="did not end in time"):
        venv(HOST, replace(required, timeout_s=0.0), quiet)
    assert environments(tmp_path) == set()
    with pytest.raises(RuntimeSetupError, match="/no/such/python: not a working Python interpreter"):
        venv(HOST, replace(required, python="/no/such/python"), quiet)


def test_a_surrounding_project_does_not_change_the_installed_packages(
    required: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uv.toml").write_text('[pip]\nresolution = "lowest"\n')
    monkeypatch.chdir(tmp_path)
    loose = requirements(tmp_path, "loose.txt", "frame")
    assert venv(HOST, replace(required, requirements=(loose,)), quiet).details["frame"] == "2.0"


def test_requirements_of_several_files_are_one_list(tmp_path: Path) -> None:
    requirements(tmp_path, "base.txt", "c>=1", "a==1.0")
    one = requirements(tmp_path, "one.txt", "a==1.0", "b[extra] >= 2  # why", "--find-links here")
    two = requirements(tmp_path, "two.txt", "-r base.txt", "d \\", "  ==4")
    texts = [line.text for line in union([one, two])]
    assert texts == ["a==1.0", "b[extra] >= 2", "--find-links here", "c>=1", "d    ==4"]


@pytest.mark.parametrize("line", ["torch=1.0", "torch==", "torch 2.0", "torch[a==1"])
def test_an_invalid_requirement_is_reported_with_file_and_line(tmp_path: Path, line: str) -> None:
    file = requirements(tmp_path, "one.txt", "\ufeffnumpy==1.0", line)
    with pytest.raises(RuntimeSetupError, match=re.escape(f"{file}:2: {line}: invalid requirement; expected")):
        union([file])


@pytest.mark.parametrize(
    "line", ["./a-1.whl", "dist/a", "https://x.example/a.whl", "git+https://x.example/a", "-e .", "a==1 --hash=x:0"]
)
def test_options_and_paths_are_passed_to_the_installer(tmp_path: Path, line: str) -> None:
    assert [one.text for one in union([requirements(tmp_path, "one.txt", line)])] == [line]


def test_all_conflicts_are_reported_with_file_and_line(tmp_path: Path) -> None:
    one = requirements(tmp_path, "one.txt", "# pins", "A_b==1.0", "x>=2", "fine==1")
    two = requirements(tmp_path, "two.txt", "a-b==2.0", "x==1.5", "fine>=0.5")
    with pytest.raises(RuntimeSetupError) as caught:
        union([one, two])
    text = str(caught.value)
    for place in (f"{one}:2: A_b==1.0", f"{two}:1: a-b==2.0", f"{one}:3: x>=2", f"{two}:2: x==1.5"):
        assert place in text
    assert "fine" not in text


def test_only_files_that_conflict_with_another_file_are_listed(tmp_path: Path) -> None:
    requirements(tmp_path, "base.txt", "a==1")
    one = requirements(tmp_path, "one.txt", "-r base.txt", "b>=1")
    two = requirements(tmp_path, "two.txt", "a>=2")
    same = requirements(tmp_path, "same.txt", "-r base.txt", "b==3")
    with_itself = requirements(tmp_path, "itself.txt", "c==1", "c==2")
    missing = tmp_path / "missing.txt"
    assert conflicting([one, same, with_itself, missing]) == set()
    assert conflicting([one, two, same, with_itself, missing]) == {one, two, same}
    also_one_of_itself = requirements(tmp_path, "also.txt", "c==1")
    assert conflicting([one, with_itself, also_one_of_itself]) == {with_itself, also_one_of_itself}


def test_pins_for_different_machines_do_not_conflict_and_unreadable_files_are_named(tmp_path: Path) -> None:
    lines = ('a==1; python_version < "3.9"', 'a==2; python_version >= "3.9"', "b==1.*", "b==1.4")
    assert len(union([requirements(tmp_path, "one.txt", *lines)])) == 4
    with pytest.raises(RuntimeSetupError, match=r"none\.txt: cannot be read: No such file"):
        union([tmp_path / "none.txt"])
    circle = requirements(tmp_path, "circle.txt", "-r circle.txt")
    with pytest.raises(RuntimeSetupError, match="includes itself"):
        union([circle])


def test_the_hosts_python_is_used_if_it_works_and_has_the_required_packages(tmp_path: Path) -> None:
    file = requirements(tmp_path, "r.txt", "pytest>=1", 'no-such-thing; python_version < "3"')
    found = host(HOST, RuntimeRequest("frame", (file,), python=sys.executable), quiet)
    assert found.python == sys.executable
    assert found.details["pytest"] == pytest.__version__
    assert dict(found.env) == {}
    file = requirements(tmp_path, "r.txt", "json")
    found = host(HOST, RuntimeRequest("frame", (file,), python=sys.executable), quiet)
    assert found.details["json"] == "installed"
    assert found.other_versions == ()
    file = requirements(tmp_path, "r.txt", "# pins", "json==1", "pytest==1.0", "packaging>=1", "psutil===x")
    found = host(HOST, RuntimeRequest("frame", (file,), python=sys.executable), quiet)
    assert [(one.key, one.reference, one.line) for one in found.other_versions] == [
        ("pytest", "==1.0", 3), ("psutil", "===x", 5),
    ]  # fmt: skip
    message = f"{sys.executable} has pytest {pytest.__version__}; the suites require pytest==1.0"
    assert found.warnings()[0] == message
    broken = write(tmp_path, "python", "#!/bin/sh\necho it is broken >&2; exit 3\n")
    broken.chmod(0o755)
    with pytest.raises(RuntimeSetupError, match=f"here: {broken} does not work: it is broken"):
        host(HOST, RuntimeRequest("frame", python=str(broken)), quiet)
    for text, got in (("exit 0", "b''"), ("echo 3", r"b'3\n'")):
        broken.write_text(f"#!/bin/sh\n{text}\n")
        with pytest.raises(RuntimeSetupError) as caught:
            host(HOST, RuntimeRequest("frame", python=str(broken)), quiet)
        assert f"{broken} does not work: expected a program of Python, got one that prints {got}" in str(caught.value)


def test_a_missing_package_is_named_with_its_suite_and_a_command_without_an_index(tmp_path: Path) -> None:
    (folder := tmp_path / "suites" / "net" / "frame").mkdir(parents=True)
    here, other = (requirements(place, "r.txt", *lines) for place, lines in (
        (folder, ("no-such-frame==1; python_version > '3'", "pytest", "nor_this_one")), (tmp_path, ("nothing<2",)),
    ))  # fmt: skip
    with pytest.raises(RuntimeSetupError) as caught:
        host(HOST, RuntimeRequest("frame", (here, other), python=sys.executable), quiet)
    listed = f"no-such-frame, nor_this_one, required by suites/net/frame/r.txt; nothing, required by {other}: set"
    assert str(caught.value).startswith(f"here: {sys.executable} (Python {platform.python_version()}")
    assert f") has no {listed}" in str(caught.value)
    version = "{}.{}".format(*sys.version_info)
    fill = f"flagperf wheels wheels --python-version={version} -k net:frame on a machine with one, copy the folder"
    assert f"no-such-frame==1 nor_this_one 'nothing<2'; without a package index, run {fill}" in str(caught.value)
    second = requirements(tmp_path, "second.txt", "No_such.frame")  # flagperf wheels leaves out what both suites need
    with pytest.raises(RuntimeSetupError) as caught:
        host(HOST, RuntimeRequest("frame", (here,), of_framework=(here, second), python=sys.executable), quiet)
    assert ": set python in flagperf.toml to an interpreter that has no-such-frame, or run" in str(caught.value)
    ending = "flagperf wheels does not fetch no-such-frame, which every suite of frame needs"
    assert str(caught.value).endswith(ending)


def site_python(folder: Path) -> tuple[str, Path]:
    """A virtual environment without pip, and its folder of packages."""
    venv_module.create(folder, with_pip=False)
    (site,) = folder.glob("lib/*/site-packages")
    return str(folder / "bin" / "python"), site


def test_the_first_python_on_the_path_with_all_packages_is_used(
    required: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment of the harness is often first on the PATH, and does not have the framework."""
    (harness, _), (python, site) = (site_python(tmp_path / name) for name in ("harness", "site"))
    monkeypatch.setenv("PATH", f"{Path(harness).parent}:{Path(python).parent}:{os.environ['PATH']}")
    with pytest.raises(
        RuntimeSetupError, match=f"here: {tmp_path}/harness/bin/python3 .*, a virtual environment of /.*has no frame"
    ):
        host(HOST, required, quiet)
    (site / "frame.py").touch()
    assert host(HOST, required, quiet).python == f"{tmp_path}/site/bin/python3"


def test_what_an_installed_python_lacks_comes_from_the_wheels_and_changes_nothing_there(
    required: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (python, site), wheels = site_python(tmp_path / "site"), tmp_path / "carried"
    needs = ("grid>=1", 'absent; extra == "all"', 'absent; sys_platform == "win32"', "held<2")
    write_wheel(wheels, "frame", "1.0", "".join(f"Requires-Dist: {line}\n" for line in needs))
    for name, version in (("grid", "1.5"), ("held", "1.0")):
        write_wheel(wheels, name, version)
    with zipfile.ZipFile(wheels / "held-1.0-py3-none-any.whl") as wheel:  # the site's own: another version
        wheel.extractall(site)
    (site / "held.py").write_text("VERSION = 'own'\n")
    (pip,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    shutil.copy(pip, wheels)
    for name in ("PIP_TARGET", "PIP_USER"):  # a user's settings of pip
        monkeypatch.setenv(name, str(tmp_path / "elsewhere") if name == "PIP_TARGET" else "1")
    before = {path: path.lstat().st_mtime_ns for path in (tmp_path / "site").rglob("*")}
    asked, messages = replace(required, python=python, wheels=str(wheels)), list[str]()
    assert runtimes()["host"].look(HOST, asked, CODE) is None
    assert not (tmp_path / "cache" / "overlay").exists(), "a look writes nothing"
    found = host(HOST, asked, messages.append)
    assert messages[0].startswith(f"building {found.path[0]} with frame==1.0, grid>=1 from {wheels}")
    environment = {"PYTHONPATH": ":".join(found.path), "PATH": os.environ["PATH"]}
    words = [found.python, "-B", "-c", "import frame, grid, held; print(frame.VERSION, grid.VERSION, held.VERSION)"]
    assert subprocess.check_output(words, env=environment, text=True) == "1.0 1.5 own\n"
    assert found.details["frame"] == "1.0"
    assert found == runtimes()["host"].look(HOST, asked, CODE)
    Path(found.path[0], "frame.py").write_text("VERSION = 'changed'\n")
    assert host(HOST, asked, messages.append) == found
    assert subprocess.check_output(words, env=environment, text=True) == "1.0 1.5 own\n"
    assert {path: path.lstat().st_mtime_ns for path in (tmp_path / "site").rglob("*")} == before
    (wheels / "grid-1.5-py3-none-any.whl").unlink()
    absent = rf"has no frame, required by .*one\.txt \({wheels} has no wheel of grid\): .* flagperf wheels carried"
    with pytest.raises(RuntimeSetupError, match=absent):
        host(HOST, asked, quiet)
    write_wheel(wheels, "grid", "0.5")  # too old
    with pytest.raises(RuntimeSetupError, match=r"could not be built from .*ERROR: .*grid>=1; .* --python-version=3"):
        host(HOST, asked, quiet)
    (wheels / pip.name).unlink()
    with pytest.raises(RuntimeSetupError, match=rf"no pip, and {wheels} has no wheel of pip"):
        host(HOST, asked, quiet)
    (wheels / "grid-0.5-py3-none-any.whl").write_bytes(b"broken")
    with pytest.raises(RuntimeSetupError, match=r"grid-0\.5-py3-none-any\.whl: not a usable wheel"):
        host(HOST, asked, quiet)


def test_the_extras_of_a_requirement_are_kept_with_what_they_need() -> None:
    wheels = {"frame": [Requirement('grid; extra == "all"'), Requirement('absent; extra == "other"')], "grid": []}
    for text, expected in (("frame[all]==1", ["frame[all]==1", "grid"]), ("frame==1", ["frame==1"])):
        found = with_dependencies([Requirement(text)], wheels, {"frame", "grid", "absent"}, {})
        assert [*map(requirement_text, found)] == expected


@pytest.mark.parametrize("where", ["PYTHONPATH", "user", "folder"])
def test_a_host_finds_the_packages_of_its_ranks(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH, with a relative folder, and the user's packages reach a rank, the current folder does not."""
    site = "lib/python{}.{}/site-packages".format(*sys.version_info)
    (folder := tmp_path / {"PYTHONPATH": "here", "user": f".local/{site}", "folder": ""}[where]).mkdir(
        parents=True, exist_ok=True
    )
    (folder / "packed.py").write_text("PLACE = __file__\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLAGPERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", ":here" if where == "PYTHONPATH" else "")
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")  # ranks do not inherit it
    python = os.path.realpath(sys.executable)  # a virtual environment has no packages of the user
    required = RuntimeRequest("frame", (requirements(tmp_path, "r.txt", "packed"),), python=python)
    if where == "folder":
        with pytest.raises(RuntimeSetupError, match="has no packed"):
            host(HOST, required, quiet)
        return
    found = host(HOST, required, quiet)
    assert found.path == ((str(folder),) if where == "PYTHONPATH" else ())
    assert found.label == f"host: {python}" + (f" with PYTHONPATH={folder}" if found.path else "")
    rank = RankProcess(0, (), {"PYTHONPATH": ":".join(found.path)}, "/")
    environment = rank.environment(os.environ, {"HOME": "/nowhere", **user_packages()})
    argv = [found.python, "-c", "import packed; print(packed.PLACE)"]
    assert subprocess.check_output(argv, env=environment, cwd="/", text=True).strip() == str(folder / "packed.py")


MINE = "https://packages.test/simple"
INDEX = f"[global]\nindex-url = {MINE}\n"
FOLDERS = f"{INDEX}find-links =\n    /a\n    /b\nno-index = no\n"
MORE = "[install]\nextra-index-url =\n    https://a.test\n    https://b.test\n"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """A user's environment, without the pip settings of this machine."""
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none"), "SSL_CERT_FILE": "/own.pem"}


def write_pip(home: dict[str, str], text: str, name: str = ".config/pip/pip.conf") -> None:
    write(Path(home["HOME"]), name, text)


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        (f"{INDEX}timeout = 3\n", {}, {"UV_DEFAULT_INDEX": MINE}),
        (INDEX, {"PIP_INDEX_URL": "https://other.test"}, {"UV_DEFAULT_INDEX": "https://other.test"}),
        (INDEX, {"PIP_CONFIG_FILE": "/dev/null"}, {}),
        (FOLDERS, {}, {"UV_DEFAULT_INDEX": MINE}),
        (FOLDERS, {"PIP_NO_INDEX": "yes"}, {"UV_FIND_LINKS": "/a,/b", "UV_NO_INDEX": "1"}),
        (MORE, {}, {"UV_INDEX": "https://a.test https://b.test", "UV_INDEX_STRATEGY": "unsafe-best-match"}),
        ("not a settings file", {}, {}),
        *((INDEX, {name: "1"}, {}) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_NO_INDEX")),
    ],
)
def test_pips_index_is_used_unless_uv_has_settings(
    text: str, variables: dict[str, str], expected: dict[str, str], home: dict[str, str]
) -> None:
    write_pip(home, text)
    assert index_settings({**home, **variables}) == expected


def test_pips_certificates_are_trusted_if_no_others_are_set(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "ours.pem").touch()
    write_pip(home, f"[global]\ncert = {tmp_path / 'ours.pem'}\n")
    assert index_settings(home) == {}
    del home["SSL_CERT_FILE"]
    assert index_settings(home, MINE) == {"SSL_CERT_FILE": str(tmp_path / "ours.pem"), "UV_DEFAULT_INDEX": MINE}
    (tmp_path / "ours.pem").unlink()
    assert index_settings(home) == {}


def test_a_later_file_a_given_source_and_a_folder_have_priority(home: dict[str, str], tmp_path: Path) -> None:
    write_pip(home, "[global]\nindex-url = https://legacy.test\n", ".pip/pip.conf")
    write_pip(home, INDEX)
    assert index_settings(home)["UV_DEFAULT_INDEX"] == MINE
    write_pip(home, "[global]\nindex-url = https://named.test\n", "named.conf")
    named = {**home, "PIP_CONFIG_FILE": str(tmp_path / "named.conf")}
    assert index_settings(named)["UV_DEFAULT_INDEX"] == "https://named.test"
    of_uv = {**home, "UV_DEFAULT_INDEX": "https://uv.test"}
    assert index_settings(of_uv, "https://asked.test") == {"UV_DEFAULT_INDEX": "https://asked.test"}
    folder = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": "file:///my%2Cwheels"}
    assert index_settings(of_uv, "https://asked.test", "/my,wheels") == folder
    write_pip(home, '[[index]]\nurl = "https://uv.test"\n', ".config/uv/uv.toml")
    assert index_settings(home) == {}


def answer(**changed: Any) -> dict[str, Any]:
    return {"machine": platform.machine(), "libc": "glibc 2.36", "uv": None, "cache": "/c", "uv_copies": [], **changed}


class Far(LocalHost):
    is_local = False

    def __init__(self, name: str = "far") -> None:
        super().__init__(name)
        self.brought: list[str] = []

    def run(self, argv: Sequence[str], **more: Any) -> Completed:
        if _WRITE in argv:
            self.brought.append(argv[-1])
        return super().run(argv, **more)


def test_uv_is_copied_to_another_host_once_and_not_to_this_machine(required: RuntimeRequest, tmp_path: Path) -> None:
    far = Far()
    first = venv(far, required, quiet)
    (uv,) = far.brought
    assert uv.startswith(f"{tmp_path}/cache/bin/uv-")
    assert first.python.startswith(f"{tmp_path}/cache/venv/")
    assert venv(far, required, quiet) == first == venv(HOST, required, quiet)
    venv(far, replace(required, requirements=(requirements(tmp_path, "two.txt", "frame==2.0"),)), quiet)
    assert far.brought == [uv]


@pytest.mark.parametrize("other", [{"machine": "mips"}, {"libc": ""}])
def test_a_host_that_cannot_run_the_copied_uv_uses_its_own_or_reports_it(other: dict[str, str]) -> None:
    assert _uv(Far(), answer(**other, uv="/opt/uv"), quiet) == "/opt/uv"
    with pytest.raises(RuntimeSetupError, match=r"far: no usable uv: .*install uv there"):
        _uv(Far(), answer(**other), quiet)


def test_a_virtual_python_and_its_base_find_the_same_environment(required: RuntimeRequest) -> None:
    base = sys._base_executable  # type: ignore[attr-defined]
    assert venv(HOST, replace(required, python=base), quiet) == venv(HOST, required, quiet)


def test_an_unsupported_python_is_reported_with_the_setting_to_change(required: RuntimeRequest, tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "frame", "4.0", "Requires-Python: >=3.99\n")
    new = replace(required, requirements=(requirements(tmp_path, "new.txt", "frame==4.0"),))
    version = ".".join(map(str, sys.version_info[:3]))
    message = rf"The environment uses Python {version} \(.*\): run pytest with another"
    with pytest.raises(RuntimeSetupError, match=message):
        venv(HOST, new, quiet)
    with pytest.raises(RuntimeSetupError, match=r"set another Python with python = \.\.\. in \[cluster\]"):
        venv(Far(), new, quiet)


def test_a_password_in_an_address_is_not_shown(required: RuntimeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("UV_FIND_LINKS")
    messages: list[str] = []
    with pytest.raises(RuntimeSetupError) as caught:
        venv(HOST, replace(required, pip_source="https://me:hush@packages.test/simple"), messages.append)
    log = Path(str(caught.value).split("all of them: ")[1].split(")")[0])
    for text in (str(caught.value), *messages, log.read_text(), log.with_suffix(".txt").read_text()):
        assert "hush" not in text


def test_a_build_stops_when_its_controller_is_gone(required: RuntimeRequest, tmp_path: Path) -> None:
    uv = write(tmp_path, "uv", f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    uv.chmod(0o755)
    request = {"op": "build", "framework": "frame", "requirements": ["frame"], "uv": str(uv), "timeout_s": 60}
    channel = open_module(HOST, CODE, "flagperf_driver.node.environments.build")
    channel.send(request)
    assert "building" in str(channel.receive(20))
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the build")
    assert channel.close(10) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert environments(tmp_path) == set()


@pytest.fixture
def index(required: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """Two indexes: ``all`` has every version of frame, ``small`` has a variant of one version."""
    for name in ("UV_FIND_LINKS", "UV_NO_INDEX", "UV_OFFLINE"):
        monkeypatch.delenv(name)
    write_wheel(tmp_path / "index" / "all" / "frame", "frame", "1.0")
    write_wheel(tmp_path / "index" / "small" / "frame", "frame", "1.0+small")
    with package_index(tmp_path / "index") as made:
        monkeypatch.setenv("UV_DEFAULT_INDEX", made.url("all"))
        yield made


def small(required: RuntimeRequest, address: str) -> RuntimeRequest:
    return replace(required, uv_settings=(("UV_INDEX", address),))


def test_why_packages_are_unavailable_is_known_before_a_build(
    required: RuntimeRequest, index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed Python is used instead only if no index answers, or a folder that replaces it lacks the packages."""
    own = cast("Any", runtimes()["venv"])
    assert own.unavailable(HOST, required, CODE) == ("", False)
    lacking = replace(required, requirements=(requirements(tmp_path, "lacking.txt", "frame==7"),))
    assert own.unavailable(HOST, lacking, CODE) == ("", False), "its build reports that the index lacks the package"
    address = f"http://127.0.0.1:{free_port()}"  # nobody listens
    reason, of_all = own.unavailable(HOST, replace(required, pip_source=f"{address}/simple"), CODE)
    assert (reason.startswith(f"cannot fetch from {address}: "), of_all) == (True, True)
    carried = replace(required, wheels=str(tmp_path / "wheels"))
    assert own.unavailable(HOST, carried, CODE) == ("", False)
    reason, of_all = own.unavailable(HOST, replace(lacking, wheels=carried.wheels), CODE)
    assert ("frame==7" in reason, of_all) == (True, False)
    assert not own.exists(HOST, carried)
    asked = len(index.asked)
    venv(HOST, carried, quiet)
    assert own.exists(HOST, carried)
    assert len(index.asked) == asked, "the folder is used instead of the index"
    monkeypatch.setattr("pytest_flagperf.runtime.venv.need", lambda _: (_ for _ in ()).throw(PackageMissing(["no uv"])))
    assert own.unavailable(HOST, required, CODE) == ("no uv", False)


def test_the_vendors_packages_are_used_if_their_index_answers(required: RuntimeRequest, index: PackageIndex) -> None:
    lines: list[str] = []
    made = venv(HOST, small(required, index.url("small")), lines.append)
    assert (made.details["frame"], made.details["UV_INDEX"]) == ("1.0+small", index.url("small"))
    assert not any(line.startswith("warning") for line in lines)
    plain = venv(HOST, required, quiet)  # control: another vendor's environment
    assert (plain.details["frame"], plain.details.get("UV_INDEX")) == ("1.0", None)
    assert made.label != plain.label


@pytest.mark.usefixtures("index")
def test_without_the_vendors_packages_the_default_ones_are_used_and_reported(required: RuntimeRequest) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/simple/"
    lines: list[str] = []
    made = venv(HOST, small(required, nowhere), lines.append)
    assert made.details["frame"] == "1.0"
    (warning,) = [line for line in lines if line.startswith("warning")]
    assert warning.startswith(f"warning: no packages with UV_INDEX={nowhere}: cannot fetch from http://127.0.0.1:")
    assert "; building with the default packages, which may be several GB larger" in warning


def test_missing_packages_are_tried_after_a_day(required: RuntimeRequest, index: PackageIndex, tmp_path: Path) -> None:
    asking = small(required, index.url("small"))
    shutil.move(index.folder / "small", tmp_path / "away")
    write_wheel(index.folder / "small" / "frame", "frame", "9.0")
    lines: list[str] = []
    without = venv(HOST, asking, lines.append)
    assert [line for line in lines if line.startswith("warning") and "/: Because " in line]
    assert f", without the vendor's UV_INDEX={index.url('small')}: no packages" in without.label
    asked = index.times("small", "frame")
    assert venv(HOST, replace(asking, run="another"), quiet) == without
    assert runtimes()["venv"].look(HOST, asking, CODE) == without
    assert index.times("small", "frame") == asked
    shutil.copytree(tmp_path / "away", index.folder / "small", dirs_exist_ok=True)
    (record,) = (tmp_path / "cache" / "venv").glob("*.failed")
    os.utime(record, (0, 0))
    assert runtimes()["venv"].look(HOST, asking, CODE) is None
    assert venv(HOST, asking, quiet).details["frame"] == "1.0+small"


def test_the_content_of_a_file_of_overrides_is_a_part_of_the_environments_identity(
    required: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    override = requirements(tmp_path, "override.txt", "frame==2.0")
    asking = replace(required, uv_settings=(("UV_OVERRIDE", str(override)),))
    first = venv(HOST, asking, quiet)
    assert (first.details["frame"], first.details["UV_OVERRIDE"]) == ("2.0", str(override))
    override.write_text("frame==1.0\n")
    assert venv(HOST, asking, quiet).details["frame"] == "1.0"
    override.unlink()
    with pytest.raises(RuntimeSetupError, match=r"UV_OVERRIDE=.*override.txt: the file cannot be read: No such file"):
        venv(HOST, asking, quiet)


def test_an_override_replaces_what_a_package_requires(required: RuntimeRequest, tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "engine", "1.0", "Requires-Dist: frame==1.0+cpu\n")
    asking = replace(required, requirements=(requirements(tmp_path, "two.txt", "engine==1.0"),))
    with pytest.raises(RuntimeSetupError, match=r"no version of frame==1.0\+cpu"):
        venv(HOST, asking, quiet)
    overridden = replace(asking, overrides=(requirements(tmp_path, "overrides.txt", "frame==1.0"),))
    assert runtimes()["venv"].to_build(HOST, overridden, CODE) == "2 packages of 0 MB"
    assert venv(HOST, overridden, quiet).details["frame"] == "1.0"


def test_a_package_from_a_file_is_recorded_with_its_address(required: RuntimeRequest, tmp_path: Path) -> None:
    wheel = f"file://{tmp_path}/wheels/frame-2.0-py3-none-any.whl"
    asking = replace(required, requirements=(requirements(tmp_path, "two.txt", f"frame @ {wheel}"),))
    assert venv(HOST, asking, quiet).details["frame"] == wheel


def test_the_users_index_wins(required: RuntimeRequest, index: PackageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(small(required, index.url("small")), pip_source=index.url("all"))
    assert venv(HOST, asked, quiet).details["frame"] == "1.0"
    monkeypatch.setenv("UV_INDEX", index.url("all"))
    assert venv(HOST, small(required, index.url("small")), quiet).details["frame"] == "1.0"
    assert index.times("small", "frame") == 0


def test_environments_are_built_on_hosts_of_a_cluster_at_once(
    lab: Lab, required: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", "/wheels")
    monkeypatch.delenv("FLAGPERF_CACHE")
    hosts = ssh_hosts(lab.ssh_settings(lab.hosts(2)))
    messages: list[str] = []
    try:
        for there in hosts:
            wheel = tmp_path / "wheels" / "frame-1.0-py3-none-any.whl"
            _write_program(there, f"/wheels/{wheel.name}", wheel.read_bytes())
        with ThreadPoolExecutor(2) as pool:
            made = [*pool.map(lambda there: venv(there, required, messages.append), hosts)]
        for there, python in zip(hosts, made, strict=True):
            done = there.run([python.python, "-c", "import frame; print(frame.VERSION)"], timeout_s=30)
            assert done.out == "1.0\n"
            assert any(line.startswith(f"copying uv to {there.name} (") for line in messages)
    finally:
        for there in hosts:
            there.close()


def test_uv_is_looked_for_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python 3.11 a thread gets no variables of sysconfig, which uv reads, while another one reads them first."""
    looking = threading.Lock()

    def find() -> str:
        assert looking.acquire(blocking=False), "two threads at once"
        time.sleep(0.01)
        looking.release()
        return "/bin/uv"

    monkeypatch.setattr("uv.find_uv_bin", find)
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lambda _: uv_program(), range(8))] == ["/bin/uv"] * 8
