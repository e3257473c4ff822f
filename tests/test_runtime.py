"""The ranks' Python: built once per content, or the one at hand; and a clear word where neither can be."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flagperf_driver.node.environment import describe
from pytest_flagperf import runtime
from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.cluster import ClusterConfig
from pytest_flagperf.hosts.deploy import open_module, pack
from pytest_flagperf.hosts.host_pool import run_on_all
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.hosts.ssh import ssh_hosts
from pytest_flagperf.runtime import BuildFailed, Interpreter, RuntimeRequest, RuntimeSetupError, runtimes
from pytest_flagperf.runtime.pip_settings import index_settings
from pytest_flagperf.runtime.requirements import union
from pytest_flagperf.runtime.venv import _uv
from tests.package_index import PackageIndex, package_index

pytestmark = pytest.mark.integration

if TYPE_CHECKING:
    from tests.lab.lab import Lab

HOST = LocalHost("here")
CODE = pack({})


def venv(there: Host, wanted: RuntimeRequest, progress: Callable[[str], None]) -> Interpreter:
    return runtimes()["venv"].prepare(there, wanted, progress, CODE)


def host(there: Host, wanted: RuntimeRequest, progress: Callable[[str], None]) -> Interpreter:
    return runtimes()["host"].prepare(there, wanted, progress, CODE)


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
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuntimeRequest:
    """A framework of one small package, from a folder: nothing of the network."""
    write_wheel(tmp_path / "wheels", "frame", "1.0")
    write_wheel(tmp_path / "wheels", "frame", "2.0")
    monkeypatch.setenv("FLAGPERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    return RuntimeRequest("frame", (requirements(tmp_path, "one.txt", "frame==1.0"),))


def requirements(folder: Path, name: str, *lines: str) -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


def environments(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache" / "venv").iterdir() if path.is_dir()}


def ask(python: str, question: str) -> str:
    return subprocess.run([python, "-c", question], capture_output=True, text=True, check=True).stdout.strip()


# -- which runtimes there are ------------------------------------------------------------------------------


def test_runtimes_are_the_modules_with_a_runtime() -> None:
    assert set(runtimes()) == {"docker", "host", "venv"}


def test_a_module_put_into_the_folder_is_a_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boat.py").write_text("RUNTIME = 'afloat'\n")
    monkeypatch.setattr(runtime, "__path__", [*runtime.__path__, str(tmp_path)])
    runtimes.cache_clear()
    try:
        assert "boat" in runtimes()
    finally:
        runtimes.cache_clear()
        sys.modules.pop("pytest_flagperf.runtime.boat", None)


# -- venv --------------------------------------------------------------------------------------------------


def test_an_environment_is_built_once_and_shows_its_progress(wanted: RuntimeRequest, tmp_path: Path) -> None:
    said: list[str] = []
    first = venv(HOST, wanted, said.append)
    assert ask(first.python, "import frame; print(frame.VERSION)") == "1.0"
    assert first.details["frame"] == "1.0"
    assert first.details["python"] == ask(first.python, "import platform; print(platform.python_version())")
    assert said[0].startswith("building the frame environment in ")
    assert "+ frame==1.0" in said
    said.clear()
    assert venv(HOST, wanted, said.append) == first
    assert said == []


def test_programs_of_the_environment_come_first_on_the_path(wanted: RuntimeRequest) -> None:
    made = venv(HOST, wanted, quiet)
    assert made.env["PATH"].split(":")[0] == str(Path(made.python).parent)
    assert made.env["VIRTUAL_ENV"] == str(Path(made.python).parent.parent)


def test_another_content_is_another_environment(
    wanted: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pythons = {venv(HOST, wanted, quiet).python}
    other = requirements(tmp_path, "two.txt", "frame==2.0")
    pythons.add(venv(HOST, replace(wanted, requirements=(other,)), quiet).python)
    monkeypatch.setenv("UV_TORCH_BACKEND", "cpu")
    pythons.add(venv(HOST, wanted, quiet).python)
    assert len(pythons) == 3
    monkeypatch.setenv("UV_CONCURRENT_DOWNLOADS", "3")  # changes how, not what
    comment = requirements(tmp_path, "three.txt", "# the same", "", "frame==1.0  # again")
    pythons.add(venv(HOST, replace(wanted, requirements=(comment,)), quiet).python)
    assert len(pythons) == 3


def test_of_many_at_once_one_builds_and_the_rest_wait(wanted: RuntimeRequest, tmp_path: Path) -> None:
    said: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda _: venv(HOST, wanted, said.append).python, range(4)))
    assert len(made) == 1
    assert sum(line.startswith("building") for line in said) == 1


def test_what_cannot_be_built_is_removed_and_explained(wanted: RuntimeRequest, tmp_path: Path) -> None:
    missing = requirements(tmp_path, "bad.txt", "frame==3.0")
    with pytest.raises(RuntimeSetupError) as caught:
        venv(HOST, replace(wanted, requirements=(missing,)), quiet)
    text = str(caught.value)
    assert "uv pip failed with exit code 1" in text
    assert "frame==3.0" in text  # uv's own words
    log = text.split("all of them: ")[1].split(")")[0]
    assert "frame==3.0" in Path(log).read_text()
    assert environments(tmp_path) == set()
    assert venv(HOST, wanted, quiet).details["frame"] == "1.0"  # the control


def test_a_half_built_environment_is_built_anew(wanted: RuntimeRequest) -> None:
    folder = Path(venv(HOST, wanted, quiet).env["VIRTUAL_ENV"])
    (folder / "complete.json").unlink()
    (folder / "rubbish").touch()
    said: list[str] = []
    venv(HOST, wanted, said.append)
    assert said[0].startswith("building")
    assert not (folder / "rubbish").exists()


def test_a_build_that_takes_too_long_is_ended(wanted: RuntimeRequest, tmp_path: Path) -> None:
    with pytest.raises(RuntimeSetupError, match="did not end in time"):
        venv(HOST, replace(wanted, timeout_s=0.0), quiet)
    assert environments(tmp_path) == set()


def test_a_python_to_build_with_must_work(wanted: RuntimeRequest, tmp_path: Path) -> None:
    with pytest.raises(RuntimeSetupError, match="/no/such/python: is not a Python that works"):
        venv(HOST, replace(wanted, python="/no/such/python"), quiet)


def test_a_project_around_us_does_not_decide_what_is_installed(
    wanted: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uv.toml").write_text('[pip]\nresolution = "lowest"\n')
    monkeypatch.chdir(tmp_path)
    loose = requirements(tmp_path, "loose.txt", "frame")
    assert venv(HOST, replace(wanted, requirements=(loose,)), quiet).details["frame"] == "2.0"


# -- requirements ------------------------------------------------------------------------------------------


def test_requirements_of_several_files_are_one_list(tmp_path: Path) -> None:
    requirements(tmp_path, "base.txt", "c>=1", "a==1.0")
    one = requirements(tmp_path, "one.txt", "a==1.0", "b[extra] >= 2  # why", "--find-links here")
    two = requirements(tmp_path, "two.txt", "-r base.txt", "d \\", "  ==4")
    texts = [line.text for line in union([one, two])]
    assert texts == ["a==1.0", "b[extra] >= 2", "--find-links here", "c>=1", "d    ==4"]


@pytest.mark.parametrize("line", ["torch=1.0", "torch==", "torch 2.0", "torch[a==1"])
def test_a_line_that_no_installer_reads_is_told_with_its_place(tmp_path: Path, line: str) -> None:
    file = requirements(tmp_path, "one.txt", "\ufeffnumpy==1.0", line)
    with pytest.raises(
        RuntimeSetupError, match=re.escape(f"{file}:2: {line}: invalid requirement; expected for example torch==2.10")
    ):
        union([file])


@pytest.mark.parametrize(
    "line",
    ["./a-1.whl", "dist/a", "https://x.example/a.whl", "git+https://x.example/a", "-e .", "a==1 --hash=x:0"],
)
def test_options_and_places_are_the_installers_to_read(tmp_path: Path, line: str) -> None:
    assert [one.text for one in union([requirements(tmp_path, "one.txt", line)])] == [line]


def test_contradictions_are_named_with_file_and_line_all_at_once(tmp_path: Path) -> None:
    one = requirements(tmp_path, "one.txt", "# pins", "A_b==1.0", "x>=2", "fine==1")
    two = requirements(tmp_path, "two.txt", "a-b==2.0", "x==1.5", "fine>=0.5")
    with pytest.raises(RuntimeSetupError) as caught:
        union([one, two])
    text = str(caught.value)
    for place in (f"{one}:2: A_b==1.0", f"{two}:1: a-b==2.0", f"{one}:3: x>=2", f"{two}:2: x==1.5"):
        assert place in text
    assert "fine" not in text


def test_pins_for_different_machines_do_not_contradict(tmp_path: Path) -> None:
    lines = ('a==1; python_version < "3.9"', 'a==2; python_version >= "3.9"', "b==1.*", "b==1.4")
    assert len(union([requirements(tmp_path, "one.txt", *lines)])) == 4


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeSetupError, match=r"none\.txt: cannot be read: No such file"):
        union([tmp_path / "none.txt"])
    circle = requirements(tmp_path, "circle.txt", "-r circle.txt")
    with pytest.raises(RuntimeSetupError, match="includes itself"):
        union([circle])


# -- host --------------------------------------------------------------------------------------------------


def test_the_python_at_hand_is_taken_if_it_has_what_is_needed(tmp_path: Path) -> None:
    file = requirements(tmp_path, "r.txt", "pytest>=1", 'no-such-thing; python_version < "3"')
    found = host(HOST, RuntimeRequest("frame", (file,), python=sys.executable), quiet)
    assert found.python == sys.executable
    assert found.details["pytest"] == pytest.__version__
    assert dict(found.env) == {}


def test_what_the_python_at_hand_lacks_is_named_all_of_it(tmp_path: Path) -> None:
    file = requirements(tmp_path, "r.txt", "no-such-frame==1", "pytest", "nor_this_one")
    with pytest.raises(RuntimeSetupError, match="has no no-such-frame, nor_this_one, required by frame suites"):
        host(HOST, RuntimeRequest("frame", (file,), python=sys.executable), quiet)


def test_a_module_that_no_distribution_brought_counts_too(tmp_path: Path) -> None:
    file = requirements(tmp_path, "r.txt", "json")
    found = host(HOST, RuntimeRequest("frame", (file,), python=sys.executable), quiet)
    assert found.details["json"] == "installed"


def test_a_python_at_hand_that_does_not_work_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho it is broken >&2; exit 3\n")
    broken.chmod(0o755)
    with pytest.raises(RuntimeSetupError, match=f"here: {broken} does not work: it is broken"):
        host(HOST, RuntimeRequest("frame", python=str(broken)), quiet)


# -- pip's settings ------------------------------------------------------------------------------------------

MINE = "https://packages.test/simple"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """A user's environment, without what the machine's own pip is told."""
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none"), "SSL_CERT_FILE": "/told"}


def write_pip(home: dict[str, str], text: str, name: str = ".config/pip/pip.conf") -> None:
    file = Path(home["HOME"], name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_pips_index_is_passed_on(home: dict[str, str]) -> None:
    write_pip(home, f"[global]\nindex-url = {MINE}\nfind-links = /elsewhere\n")
    assert index_settings(home) == {"UV_DEFAULT_INDEX": MINE}
    assert index_settings({**home, "PIP_INDEX_URL": "https://other.test"}) == {"UV_DEFAULT_INDEX": "https://other.test"}


def test_pips_certificates_are_trusted_where_no_others_are_told(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "ours.pem").touch()
    write_pip(home, f"[global]\ncert = {tmp_path / 'ours.pem'}\n")
    assert index_settings(home) == {}
    del home["SSL_CERT_FILE"]
    assert index_settings(home) == {"SSL_CERT_FILE": str(tmp_path / "ours.pem")}
    assert index_settings(home, MINE) == {"SSL_CERT_FILE": str(tmp_path / "ours.pem"), "UV_DEFAULT_INDEX": MINE}
    (tmp_path / "ours.pem").unlink()
    assert index_settings(home) == {}


def test_further_indexes_count_as_they_do_for_pip(home: dict[str, str]) -> None:
    write_pip(home, "[install]\nextra-index-url =\n    https://a.test\n    https://b.test\n")
    assert index_settings(home) == {
        "UV_INDEX": "https://a.test https://b.test",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_a_later_file_wins_as_it_does_for_pip(home: dict[str, str], tmp_path: Path) -> None:
    write_pip(home, "[global]\nindex-url = https://legacy.test\n", ".pip/pip.conf")
    write_pip(home, f"[global]\nindex-url = {MINE}\n")
    assert index_settings(home)["UV_DEFAULT_INDEX"] == MINE
    write_pip(home, "[global]\nindex-url = https://named.test\n", "named.conf")
    named = {**home, "PIP_CONFIG_FILE": str(tmp_path / "named.conf")}
    assert index_settings(named)["UV_DEFAULT_INDEX"] == "https://named.test"
    assert index_settings({**home, "PIP_CONFIG_FILE": "/dev/null"}) == {}


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_NO_INDEX"])
def test_uvs_own_settings_win_over_pips(home: dict[str, str], name: str) -> None:
    write_pip(home, f"[global]\nindex-url = {MINE}\n")
    assert index_settings({**home, name: "1"}) == {}


def test_uvs_own_file_wins_over_pips(home: dict[str, str]) -> None:
    write_pip(home, f"[global]\nindex-url = {MINE}\n")
    write_pip(home, '[[index]]\nurl = "https://uv.test"\n', ".config/uv/uv.toml")
    assert index_settings(home) == {}


def test_the_source_that_is_asked_for_wins_over_everything(home: dict[str, str]) -> None:
    write_pip(home, f"[global]\nindex-url = {MINE}\n")
    asked = index_settings({**home, "UV_DEFAULT_INDEX": "https://uv.test"}, "https://asked.test")
    assert asked == {"UV_DEFAULT_INDEX": "https://asked.test"}


def test_a_broken_pip_file_is_pips_to_complain_of(home: dict[str, str]) -> None:
    write_pip(home, "this is no file of settings")
    assert index_settings(home) == {}


def test_the_index_is_part_of_an_environments_content(wanted: RuntimeRequest) -> None:
    def name(settings: dict[str, str]) -> str:
        return describe({"framework": "frame", "requirements": ["frame==1.0"], "settings": settings}).folder.name

    assert name(index_settings({}, MINE)) != name({})
    assert name({"UV_HTTP_TIMEOUT": "3"}) == name({})  # changes how, not what


# -- who builds, and with what -----------------------------------------------------------------------------------


def found(**changed: Any) -> dict[str, Any]:
    return {"machine": platform.machine(), "libc": "glibc 2.36", "uv": None, "cache": "/c", "brought": [], **changed}


class Far(LocalHost):
    """Another machine, as far as one can tell, which remembers what was brought."""

    here = False

    def __init__(self, name: str = "far") -> None:
        super().__init__(name)
        self.brought: list[str] = []

    def put(self, source: Path, target: str) -> None:
        self.brought.append(target)
        super().put(source, target)
        Path(target).chmod(0o600)  # as a copy that keeps no mode


def test_our_uv_is_brought_to_a_host_once_and_nothing_to_our_own(wanted: RuntimeRequest, tmp_path: Path) -> None:
    far = Far()
    first = venv(far, wanted, quiet)
    (uv,) = far.brought
    assert uv.startswith(f"{tmp_path}/cache/bin/uv-")
    assert first.python.startswith(f"{tmp_path}/cache/venv/")
    assert venv(far, wanted, quiet) == first == venv(HOST, wanted, quiet)
    venv(far, replace(wanted, requirements=(requirements(tmp_path, "two.txt", "frame==2.0"),)), quiet)
    assert far.brought == [uv]


@pytest.mark.parametrize("other", [{"machine": "mips"}, {"libc": ""}])
def test_a_host_that_cannot_run_our_uv_uses_its_own_or_says_so(other: dict[str, str]) -> None:
    assert _uv(Far(), found(**other, uv="/opt/uv"), quiet) == "/opt/uv"
    with pytest.raises(RuntimeSetupError, match=r"far: no usable uv: .*install uv there"):
        _uv(Far(), found(**other), quiet)


def test_a_python_and_the_one_it_was_made_from_find_the_same_environment(wanted: RuntimeRequest) -> None:
    base = sys._base_executable  # type: ignore[attr-defined]
    assert venv(HOST, replace(wanted, python=base), quiet) == venv(HOST, wanted, quiet)


def test_a_python_that_the_packages_are_not_made_for_is_said_with_what_to_set(
    wanted: RuntimeRequest, tmp_path: Path
) -> None:
    write_wheel(tmp_path / "wheels", "frame", "4.0", "Requires-Python: >=3.99\n")
    new = replace(wanted, requirements=(requirements(tmp_path, "new.txt", "frame==4.0"),))
    version = ".".join(map(str, sys.version_info[:3]))
    with pytest.raises(RuntimeSetupError, match=rf"It is built with Python {version} \(.*\): run pytest with another"):
        venv(HOST, new, quiet)
    with pytest.raises(RuntimeSetupError, match=r"set another Python with python = \.\.\. in \[cluster\]"):
        venv(Far(), new, quiet)


def test_a_password_in_an_indexs_address_is_not_told(wanted: RuntimeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("UV_FIND_LINKS")
    said: list[str] = []
    with pytest.raises(RuntimeSetupError) as caught:
        venv(HOST, replace(wanted, pip_source="https://me:hush@packages.test/simple"), said.append)
    log = Path(str(caught.value).split("all of them: ")[1].split(")")[0])
    for text in (str(caught.value), *said, log.read_text(), log.with_suffix(".txt").read_text()):
        assert "hush" not in text


def test_what_nobody_waits_for_any_more_is_not_built_on(wanted: RuntimeRequest, tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    uv.chmod(0o755)
    request = {"op": "build", "framework": "frame", "requirements": ["frame"], "uv": str(uv), "timeout_s": 60}
    channel = open_module(HOST, CODE, "flagperf_driver.node.environment_build")
    channel.send(request)
    assert "building" in str(channel.receive(20))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    assert channel.close(10) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert environments(tmp_path) == set()


# -- a build that failed, and packages that are not everywhere ---------------------------------------------------


@pytest.fixture
def index(wanted: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """Two indexes: ``all`` has each frame, ``small`` has a variant of one of them."""
    for name in ("UV_FIND_LINKS", "UV_NO_INDEX", "UV_OFFLINE"):
        monkeypatch.delenv(name)
    write_wheel(tmp_path / "index" / "all" / "frame", "frame", "1.0")
    write_wheel(tmp_path / "index" / "small" / "frame", "frame", "1.0+small")
    with package_index(tmp_path / "index") as made:
        monkeypatch.setenv("UV_DEFAULT_INDEX", made.url("all"))
        yield made


def small(wanted: RuntimeRequest, address: str) -> RuntimeRequest:
    return replace(wanted, uv_settings=(("UV_INDEX", address),))


def test_a_failed_build_is_not_repeated_in_the_same_run(
    wanted: RuntimeRequest, index: PackageIndex, tmp_path: Path
) -> None:
    missing = replace(wanted, requirements=(requirements(tmp_path, "bad.txt", "frame==3.0"),), run="one")

    def failure(wanted: RuntimeRequest) -> str:
        with pytest.raises(BuildFailed) as caught:
            venv(HOST, wanted, quiet)
        return str(caught.value)

    first = failure(missing)
    asked = index.times("all", "frame")
    assert asked > 0
    assert failure(missing) == first
    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(lambda _: failure(missing), range(3))) == {first}
    assert index.times("all", "frame") == asked
    assert "all of them: " in first
    # The control: another run tries again, and succeeds once the package is there.
    failure(replace(missing, run="two"))
    assert index.times("all", "frame") > asked
    write_wheel(index.folder / "all" / "frame", "frame", "3.0")
    assert venv(HOST, replace(missing, run="three"), quiet).details["frame"] == "3.0"
    assert not list((tmp_path / "cache" / "venv").glob("*.failed"))


def test_a_failed_build_names_the_index_the_proxy_and_the_caches(wanted: RuntimeRequest, tmp_path: Path) -> None:
    missing = replace(wanted, requirements=(requirements(tmp_path, "bad.txt", "frame==3.0"),))
    with pytest.raises(BuildFailed) as caught:
        venv(HOST, missing, quiet)
    words = ("pip-source in flagperf.toml", "HTTPS_PROXY", "NO_PROXY", "UV_CACHE_DIR", "FLAGPERF_CACHE")
    for word in (*words, f"{tmp_path}/cache"):
        assert word in str(caught.value)


def test_the_vendors_packages_are_used_where_their_index_can_be_reached(
    wanted: RuntimeRequest, index: PackageIndex
) -> None:
    lines: list[str] = []
    assert venv(HOST, small(wanted, index.url("small")), lines.append).details["frame"] == "1.0+small"
    assert not any(line.startswith("warning") for line in lines)
    assert venv(HOST, wanted, quiet).details["frame"] == "1.0"  # the control: another vendor's environment


@pytest.mark.parametrize("there", ["nothing listens", "another version"])
def test_without_the_vendors_packages_the_default_ones_are_used_and_reported(
    wanted: RuntimeRequest, index: PackageIndex, there: str
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}/simple/"
    write_wheel(index.folder / "other" / "frame", "frame", "9.0")
    lines: list[str] = []
    address = nowhere if there == "nothing listens" else index.url("other")
    made = venv(HOST, small(wanted, address), lines.append)
    assert made.details["frame"] == "1.0"
    (warning,) = [line for line in lines if line.startswith("warning")]
    assert warning.startswith("warning: no packages with UV_INDEX=http://127.0.0.1:")
    assert "; building with the default packages, which may be several GB larger" in warning


def test_an_environment_that_is_there_is_used_without_asking_for_a_smaller_one(
    wanted: RuntimeRequest, index: PackageIndex
) -> None:
    there = venv(HOST, wanted, quiet)
    assert venv(HOST, small(wanted, index.url("small")), quiet).python == there.python
    assert index.times("small", "frame") == 0


def test_an_index_that_the_user_names_wins_over_the_vendors(
    wanted: RuntimeRequest, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(small(wanted, index.url("small")), pip_source=index.url("all"))
    assert venv(HOST, asked, quiet).details["frame"] == "1.0"
    monkeypatch.setenv("UV_INDEX", index.url("all"))
    assert venv(HOST, small(wanted, index.url("small")), quiet).details["frame"] == "1.0"
    assert index.times("small", "frame") == 0


def test_environments_are_built_on_hosts_of_a_cluster_at_once(
    lab: Lab, wanted: RuntimeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", "/wheels")
    monkeypatch.delenv("FLAGPERF_CACHE")
    told = lab.ssh_settings(lab.hosts(2))
    hosts = ssh_hosts(ClusterConfig(tuple(told.hosts), told.user, told.port, told.key, told.known_hosts))
    said: dict[str, list[str]] = {host.name: [] for host in hosts}
    try:
        for host in hosts:
            wheel = tmp_path / "wheels" / "frame-1.0-py3-none-any.whl"
            host.put(wheel, f"/wheels/{wheel.name}")
        made = run_on_all(hosts, lambda host: venv(host, wanted, said[host.name].append))
        for there, python in made.items():
            done = there.run([python.python, "-c", "import frame; print(frame.VERSION)"], timeout_s=30)
            assert done.out == "1.0\n"
            assert python.env["PATH"].startswith(str(Path(python.python).parent))
            assert f"copying uv to {there.name}" in said[there.name]
            assert "+ frame==1.0" in said[there.name]
        again = run_on_all(hosts, lambda host: venv(host, wanted, quiet))
        assert list(again.values()) == list(made.values())
    finally:
        for host in hosts:
            host.close()
