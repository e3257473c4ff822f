"""The ranks' temporary folder: one for each round, short enough for sockets, always removed with the round."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flagperf_driver.node import temporary
from pytest_flagperf.hosts.deploy import pack, sweep
from pytest_flagperf.hosts.local import LocalHost
from tests.driver.lab import Lab
from tests.helpers.processes import kill
from tests.helpers.waiting import until

# A rank that leaves a socket, a read-only folder, a link and a file, as libraries may.
FILL = """
    import json, tempfile
    from multiprocessing import connection
    listener = connection.Listener(family="AF_UNIX")
    folder = os.environ["TMPDIR"]
    os.mkdir(folder + "/closed")
    Path(folder + "/closed/file").write_text("x")
    os.chmod(folder + "/closed", 0o500)
    os.symlink(os.getcwd(), folder + "/link")
    print(json.dumps({"folder": folder, "gettempdir": tempfile.gettempdir(), "socket": listener.address,
                      "mode": os.stat(folder).st_mode & 0o777}), flush=True)
"""
FOREVER = FILL + "    train(1, 100_000)\n"


@pytest.fixture
def lab(short_tmpdir: Path, tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as lab:
        yield lab


def folder_of(lab: Lab, base: Path) -> Path:
    lab.wait_for_line(0, "gettempdir")
    printed = json.loads(lab.log(0).splitlines()[0])
    folder = Path(printed["folder"])
    assert folder.parent == base / f"pytest-flagperf-{os.getuid()}" / "tmp"
    assert printed["gettempdir"] == str(folder)
    assert printed["socket"].startswith(f"{folder}/")
    assert printed["mode"] == 0o700
    assert (folder / "closed" / "file").is_file()
    return folder


@pytest.mark.parametrize("end", ["train(1, 3)", "train(1, 3); os._exit(7)", "train(1, 3); os.kill(os.getpid(), 9)"])
def test_a_folder_is_removed_with_its_round_and_contains_no_logs(lab: Lab, short_tmpdir: Path, end: str) -> None:
    lab.start(FILL + f"    while not Path('seen').exists(): time.sleep(0.01)\n    {end}\n")
    folder = folder_of(lab, short_tmpdir)
    (lab.log_dir / "seen").touch()
    lab.over()
    assert not folder.exists()
    lab.end()
    assert (lab.log_dir / "rank0.out.log").is_file()  # the link in the folder points to the log folder
    assert not lab.of("warning")


def test_a_killed_agents_folder_is_removed_by_its_reaper(lab: Lab, short_tmpdir: Path) -> None:
    lab.start(FOREVER)
    folder = folder_of(lab, short_tmpdir)
    lab.lost = True
    lab.agent.kill()
    lab.wait_until_empty()
    until(lambda: not folder.exists(), "the end of the folder", 10)


def kill_agent_and_reaper(lab: Lab) -> None:
    """Kill all processes but the rank, which the kernel kills with its agent."""
    lab.lost = True
    rank = lab.wait_for_start()
    pids = [pid for pid in lab.living() if pid != rank]
    assert len(pids) == 3  # the agent, its reaper, and the first process of the namespaces
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    for pid in pids:
        kill(pid)
    lab.agent.wait(10)
    lab.wait_until_empty()


def test_a_leftover_folder_is_removed_by_the_next_run(lab: Lab, short_tmpdir: Path) -> None:
    lab.start(FOREVER)
    folder = folder_of(lab, short_tmpdir)
    assert list(temporary.remove_leftovers()) == []  # the control: its agent is alive
    assert (folder / "closed" / "file").is_file()
    kill_agent_and_reaper(lab)
    assert folder.exists()
    assert list(temporary.remove_leftovers()) == [f"temporary files in {folder}"]
    assert not folder.exists()


def test_the_sweep_of_a_round_removes_its_folder(lab: Lab, short_tmpdir: Path) -> None:
    lab.start(FOREVER)
    folder = folder_of(lab, short_tmpdir)
    kill_agent_and_reaper(lab)
    assert sweep(LocalHost("h"), pack({}), str(lab.log_dir), None) == ([], [])
    assert not folder.exists()


def test_a_tmpdir_too_long_for_sockets_is_not_used(short_tmpdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "SHORT", str(short_tmpdir))
    for length, used in ((5, True), (60, False)):
        monkeypatch.setenv("TMPDIR", str(short_tmpdir / ("x" * length)))
        made = temporary.Temporary()
        assert made.path.is_relative_to(os.environ["TMPDIR"]) == used
        assert made.path.is_relative_to(short_tmpdir)
        assert (made.env["TMPDIR"], made.path.is_dir()) == (str(made.path), True)
        assert made.remove()


def test_a_folder_that_cannot_be_created_fails_the_round_with_the_reason(
    short_tmpdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short_tmpdir / "file").touch()
    monkeypatch.setenv("TMPDIR", str(short_tmpdir / "file"))
    with Lab(tmp_path) as lab:
        lab.start("train(1, 3)")
        lab.end()
        (fault,) = lab.of("fault")
    own = f"{short_tmpdir}/file/pytest-flagperf-{os.getuid()}"
    assert fault["sentence"] == (
        f"rank 0 could not be started: the ranks' temporary folder cannot be created in {own}: Not a directory; "
        "free space there, or set TMPDIR in the host's environment to another folder"
    )


def test_a_folder_removed_before_its_lock_is_created_again(short_tmpdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    lock = temporary._try_lock

    def first_removed(handle: int) -> None:
        if not taken:
            taken.extend(temporary.remove_leftovers())
        lock(handle)

    monkeypatch.setattr(temporary, "_try_lock", first_removed)
    made = temporary.Temporary()
    assert len(taken) == 1
    assert str(made.path) not in taken[0]
    assert made.path.is_dir()
    assert list(temporary.remove_leftovers()) == []
    assert made.remove()


def test_links_are_not_followed(short_tmpdir: Path, tmp_path: Path) -> None:
    parent = short_tmpdir / f"pytest-flagperf-{os.getuid()}" / "tmp"
    parent.mkdir(parents=True)
    (tmp_path / "precious").touch()
    (parent / "r1").symlink_to(tmp_path)
    assert list(temporary.remove_leftovers()) == []
    assert (tmp_path / "precious").is_file()
    shutil.rmtree(parent)
