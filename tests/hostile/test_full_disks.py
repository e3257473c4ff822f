"""A full or read-only disk of the reports, or one without inodes: the messages, and the files that stay readable."""

import errno
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_flagperf import stored
from tests.plugin.conftest import Toy
from tests.plugin.conftest import toy as toy  # a fixture

FILL = """
def fill(kind):
    import contextlib, itertools, pathlib
    with contextlib.suppress(OSError):  # in the rank's own folder: it may write in no other
        if kind == "space":
            with open("filler", "wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
        for number in itertools.count():
            pathlib.Path(f"filler{number}").touch()
"""
IN_A_STEP = (
    "        time.sleep(config.step_s)",
    "        time.sleep(config.step_s)\n        step == 3 and fill({kind!r})",
)
AT_THE_END = ("driver.run(main)", "driver.run(main)\nfill({kind!r})")
FREE = """
import pathlib

def test_free_the_disk():
    for filler in pathlib.Path({disk!r}).rglob("filler*"):
        filler.unlink()
"""
REASON = "no space or no inodes left on the disk"
# The look before a run wants 256 MiB.
SIZES = {"space": "size=258m", "inodes": "size=258m,nr_inodes=60"}
ONE = ("-k", "converges", "--nodes=1x1")

Mount = Callable[[Path, str], Path]


@pytest.fixture
def mount() -> Iterator[Mount]:
    mounted: list[Path] = []

    def made(folder: Path, options: str) -> Path:
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if subprocess.run(command, check=False, capture_output=True).returncode != 0:
            pytest.skip("only root may mount a small disk")
        mounted.append(folder)
        return folder

    yield made
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fills(toy: Toy, kind: str, where: tuple[str, str]) -> None:
    """Let the training of the first suite fill the disk that it logs to."""
    program = toy.root / "suites/alpha/plain/run_pretraining.py"
    old, new = where
    text = program.read_text()
    assert old in text
    program.write_text(FILL + text.replace(old, new.format(kind=kind)))


def assert_in_sentences(result: pytest.RunResult) -> str:
    text = result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in text
    assert "Traceback" not in text
    assert "Error:" not in text, text
    return text


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "where"), [("space", IN_A_STEP), ("inodes", AT_THE_END)])
def test_a_disk_that_fills_fails_all_later_rounds(toy: Toy, mount: Mount, kind: str, where: tuple[str, str]) -> None:
    disk = mount(toy.root / "reports", SIZES[kind])
    fills(toy, kind, where)
    result = toy.run("suites", *ONE)
    text = assert_in_sentences(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text
    assert sum(count for name, count in result.parseoutcomes().items() if name in ("failed", "errors", "error")) == 2
    assert f"{REASON} mounted at {disk}" in text
    assert "alpha:plain:CPU:1:1:1" in text
    (line,) = [line for line in text.splitlines() if re.match("cannot write .*results.json", line)]
    assert f" in {toy.runs[0]}: {REASON} mounted at {disk}; " in line
    for name in ("results.json", "junit.xml", "report.html"):
        assert name in line
        assert not (toy.runs[0] / name).exists()


@pytest.mark.slow
def test_a_disk_that_is_full_before_the_first_case(toy: Toy, mount: Mount) -> None:
    disk = mount(toy.root / "reports", "size=258m,nr_inodes=2")
    result = toy.run("suites", *ONE)
    text = assert_in_sentences(result)
    assert result.ret == pytest.ExitCode.USAGE_ERROR, text
    assert text.count(f"cannot write in {disk}: no inodes left: there are too many files") == 1


@pytest.mark.slow
def test_a_later_case_runs_if_space_is_free_again(toy: Toy, mount: Mount) -> None:
    disk = mount(toy.root / "reports", SIZES["space"])
    fills(toy, "space", AT_THE_END)
    (toy.root / "suites" / "alpha" / "test_free.py").write_text(FREE.format(disk=str(disk)))
    text = assert_in_sentences(toy.run("suites", "-k", "converges or free", "--nodes=1x1"))
    results = json.loads((toy.runs[0] / "results.json").read_text())
    states = {case["case"]: case["ok"] for case in results["cases"]}
    assert states == {"alpha:plain:CPU:1:1:1": False, "beta:plain:CPU:1:1:1": True}, text
    assert all(case in (toy.runs[0] / name).read_text() for case in states for name in ("report.html", "junit.xml"))


@pytest.mark.slow
def test_an_unwritable_report_elsewhere_does_not_prevent_the_others(toy: Toy, mount: Mount) -> None:
    disk = mount(toy.root / "full", "size=64m,nr_inodes=1")
    result = toy.run("suites/alpha", *ONE, f"--junit-xml={disk}/own.xml")
    text = assert_in_sentences(result)
    result.assert_outcomes(passed=1)
    assert f"cannot write own.xml in {disk}: {REASON} mounted at {disk}" in text
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (run,) = toy.runs
    assert {"results.json", "results.csv", "report.html"} <= {path.name for path in run.iterdir()}


@pytest.mark.parametrize("kind", SIZES)
def test_the_message_has_file_disk_and_reason(tmp_path: Path, mount: Mount, kind: str) -> None:
    disk = mount(tmp_path / "disk", {"space": "size=64k", "inodes": "size=1m,nr_inodes=2"}[kind])
    path = disk / "results.json"
    if kind == "inodes":
        (disk / "last").touch()
    with pytest.raises(stored.WriteError) as caught:
        stored.write_text(path, "x" * 100_000)
    assert str(caught.value).startswith(f"cannot write {path}: {REASON} mounted at {disk};")
    assert [file.name for file in disk.iterdir()] == ([] if kind == "space" else ["last"])


def test_a_disk_that_is_read_only_is_named(tmp_path: Path, mount: Mount) -> None:
    disk = mount(tmp_path / "disk", "ro")
    for path in (disk / "options.json", disk / "case" / "round1" / "plan.json"):
        with pytest.raises(stored.WriteError, match=rf"the disk mounted at {disk} is read-only"):
            stored.write(path, {})


def test_a_quota_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is simulated: not every machine supports quotas."""

    def exceeded(_: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", exceeded)
    (tmp_path / "plan.json").write_text("old")
    with pytest.raises(stored.WriteError, match=r"plan\.json: your quota on the disk mounted at .* is used up"):
        stored.write(tmp_path / "plan.json", {"new": 1})
    assert (tmp_path / "plan.json").read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_a_record_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, then its name, then the folder: in another order a power failure leaves an empty file."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        done.append("folder" if Path(f"/proc/self/fd/{handle}").resolve().is_dir() else "file")
        fsync(handle)

    def renamed(path: Path, to: Path) -> Path:
        done.append("rename")
        return replace(path, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    stored.write(tmp_path / "round.json", {"state": "finished"})
    assert done == ["file", "rename", "folder"]


def test_a_folder_that_cannot_be_synced_is_not_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def refused(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").resolve().is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refused)
    stored.write(tmp_path / "round.json", {"state": "finished"})
    assert stored.read(tmp_path / "round.json") == {"state": "finished"}
