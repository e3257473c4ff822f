"""A rank that keeps something for a later round: nothing of it is there. Its honest twin works as before."""

import json
import mmap
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flagperf_driver.node.confinement import shared_memory
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.tables import store
from tests.driver.lab import REPO, Lab
from tests.helpers.processes import running
from tests.helpers.recording import Training, write

# Each place that a rank of the first round tries; the second round tells what it can read.
KEEP = """
    import json, pickle, tempfile
    home = os.path.expanduser("~")
    places = [home + "/kept", os.environ["XDG_CACHE_HOME"] + "/kept", tempfile.gettempdir() + "/kept", "/tmp/{mark}",
              "/var/tmp/{mark}", "/dev/shm/{mark}", "{venv}/{mark}.pth", "{suite}/{mark}.py", "kept",
              "{home}/{mark}", "{first}/kept"]

    def write():
        for place in places:
            try:
                os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
                with open(place, "wb") as file:
                    pickle.dump([0.7, 0.9], file)
            except OSError:
                pass

    def read():
        for place in places:
            try:
                with open(place, "rb") as file:
                    yield place, pickle.load(file)
            except OSError:
                pass
"""
NOT_ROOT = "import os, sys; os.getuid() or os.execlp(*['unshare'] * 2, '--map-user=1', '--map-group=1', *sys.orig_argv)"
USERS = pytest.mark.parametrize("user", ["pass", NOT_ROOT], ids=["root", "not root"])
WRITE = KEEP + "    write()\n    print(json.dumps(dict(read())), flush=True)\n    train(1, 3)\n"
READ = KEEP + "    print(json.dumps(dict(read())), flush=True)\n    train(1, 3)\n"


def found(
    folder: Path, program: str, first: Path = Path("/none"), patch: str = "pass", **order: object
) -> dict[str, object]:
    """Run a round with this rank; return what it could read, by the place."""
    suite, home = f"{REPO}/suites/resnet50", str(Path.home())
    words = {"mark": f"kept-{os.getpid()}", "venv": sys.prefix, "suite": suite, "home": home, "first": str(first)}
    for name, word in words.items():
        program = program.replace("{" + name + "}", word)
    with Lab(folder, patch=patch) as lab:
        lab.start(program, **{"vendor_code": True, **order})
        lab.end()
        assert not lab.of("fault")
        body: dict[str, object] = json.loads(lab.log(0).splitlines()[0])
        assert json.loads((lab.log_dir / "milestones.json").read_text())["not_confined"] is None
    return body


def test_nothing_of_a_round_is_within_the_reach_of_the_next(short_tmpdir: Path, tmp_path: Path) -> None:
    first = tmp_path / "1" / "logs"
    own = found(tmp_path / "1", WRITE)
    assert len(own) == 5, own  # the control: its home, its cache, its TMPDIR, /dev/shm and its folder of logs
    assert (first / "kept").exists()
    assert found(tmp_path / "2", READ, first, hidden=[str(first)]) == {}


def test_rounds_without_a_vendors_code_share_a_cache(short_tmpdir: Path, tmp_path: Path) -> None:
    own = found(tmp_path / "1", WRITE, vendor_code=False)
    shared = found(tmp_path / "2", READ, vendor_code=False)
    assert set(shared) < set(own)
    assert [Path(place).parent.name for place in shared] == ["cache"]
    assert found(tmp_path / "3", READ) == {}


def test_ranks_of_a_round_are_confined_together(short_tmpdir: Path, tmp_path: Path) -> None:
    """A library that copies memory between processes works: the ranks are in one domain."""
    share = """
        import ctypes
        number = int(os.environ["RANK"])
        buffer = ctypes.create_string_buffer(b"from rank %d" % number)
        Path("address%d.tmp" % number).write_text("%d %d" % (os.getpid(), ctypes.addressof(buffer)))
        os.replace("address%d.tmp" % number, "address%d" % number)
        while not Path("address%d" % (1 - number)).exists():
            time.sleep(0.01)
        pid, address = map(int, Path("address%d" % (1 - number)).read_text().split())
        with open("/proc/%d/mem" % pid, "rb") as memory:
            memory.seek(address)
            print(memory.read(11).decode(), flush=True)
        Path("read%d" % number).touch()
        while not Path("read%d" % (1 - number)).exists():
            time.sleep(0.01)
        train(1, 3)
    """
    with Lab(tmp_path) as lab:
        lab.start(share, share)
        lab.end()
        assert (lab.log(0).splitlines()[0], lab.log(1).splitlines()[0]) == ("from rank 1", "from rank 0")


@USERS
def test_ranks_name_their_threads_but_do_not_change_the_kernel(user: str, short_tmpdir: Path, tmp_path: Path) -> None:
    """CUDA opens the name of a thread for writing with truncation, and does not start without it."""
    mounted_below = """
        import ctypes, os
        libc = ctypes.CDLL(None)
        assert not libc.unshare(0x20000) and not libc.mount(None, b"/", None, 1 << 14 | 1 << 18, None)
        os.mkdir("logs/closed file")
        for folder in (b"/proc/sys/fs", b"logs/closed file"):
            assert not libc.mount(b"tmpfs", folder, b"tmpfs", 0, None)
            open(folder + b"/setting", "w").close()
        assert not libc.mount(None, folder, None, 1 << 12 | 1 << 5 | 1, None)  # read-only on the host
    """
    program = """
        import json, threading
        ended = threading.Event()
        thread = threading.Thread(target=ended.wait)
        thread.start()
        name = "/proc/self/task/%d/comm" % thread.native_id
        with open(name, "w") as file:
            file.write("named")
        result = {"name": open(name).read().strip()}
        ended.set()
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness", "/proc/sys/fs/setting",
                     "/proc/%d/mem" % (os.getppid() or 1), "closed file/setting"):
            try:
                os.close(os.open(path, os.O_RDWR))
                result[path] = "open"
            except OSError:
                pass
        print(json.dumps(result), flush=True)
        train(1, 3)
    """
    patch = f"exec({textwrap.dedent(mounted_below)!r})" if user == "pass" and os.geteuid() == 0 else user
    assert found(tmp_path, program, patch=patch) == {"name": "named"}


REACH = """
    import ctypes, json, struct
    reached = []

    def attempt(name, call):
        try:
            call()
            reached.append(name)
        except OSError:
            pass

    def change_mount():
        attributes = struct.pack("=QQQQ", 0, 1, 0, 0)  # without "read-only"
        if ctypes.CDLL(None).syscall(442, -100, ctypes.c_char_p(b"/"), 0x8000, attributes, len(attributes)):
            raise OSError

    attempt("mount", change_mount)
    attempt("times", lambda: os.utime("{file}", (1, 1)))
    attempt("mode", lambda: os.chmod("{file}", 0o600))
    attempt("agent", lambda: open("/proc/{agent}/cmdline").read())
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, {agent}, 5))
    attempt("coredump_filter", lambda: open("/proc/{agent}/coredump_filter", "w").write("0x1"))
    open("own", "w").close()
    print(json.dumps({"reached": sorted(reached)}), flush=True)
    train(1, 3)
"""


@USERS
def test_a_rank_changes_no_file_of_others_and_reaches_no_process(user: str, short_tmpdir: Path, tmp_path: Path) -> None:
    is_root = user == "pass" and os.geteuid() == 0
    patch = f"{user}; from flagperf_driver.node import confinement, namespaces; "
    file = tmp_path / "read"
    file.write_text("")
    controls = {
        "pass": [],
        "confinement._MOUNTS = ()": ["mode", "mount", "times"] if is_root else [],  # only root can change them
        "confinement.are_missing = lambda: False": ["agent", "coredump_filter", "mode", "priority", "times"],
    }
    with subprocess.Popen([sys.executable, "-c", f"{user}; open(0).read()"], stdin=subprocess.PIPE) as victim:
        program = REACH.replace("{file}", str(file)).replace("{agent}", str(victim.pid))
        for number, (change, reached) in enumerate(controls.items()):
            assert found(tmp_path / str(number), program, patch=patch + change) == {"reached": reached}
    with Lab(tmp_path / "3", patch=f"{patch}namespaces._CALLS['clone3'] = 10_000") as lab:
        lab.start("train(1, 3)", vendor_code=True)
        lab.end()
        reason = "the kernel refuses clone3: Function not implemented"
        confined = json.loads((lab.log_dir / "milestones.json").read_text())["not_confined"]
        assert confined == (f"root's ranks get no namespaces: {reason}" if is_root else None)
        assert lab.wait_for("warning")["sentence"].endswith(f"reach the user's processes: {reason}")


def test_a_kernel_without_landlock_is_reported(short_tmpdir: Path, tmp_path: Path) -> None:
    patch = "from flagperf_driver.node import confinement; confinement._CREATE_RULESET = 10_000"
    with Lab(tmp_path, patch=patch) as lab:
        lab.start("train(1, 3)")
        lab.end()
        reason = json.loads((lab.log_dir / "milestones.json").read_text())["not_confined"]
    assert reason.startswith("Landlock of Linux 5.19 or later is needed; this kernel (")
    assert reason.endswith("): Function not implemented")
    assert not lab.of("fault")


def test_a_daemon_of_a_rank_ends_with_its_round(short_tmpdir: Path, tmp_path: Path) -> None:
    leave = """
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sleep", ["{name}", "600"], {})
            os._exit(0)
        os.close(writer)
        print("started", os.read(reader, 1), flush=True)  # the pipe ends when the program of the daemon begins
        train(1, 3)
    """
    name = f"daemon-{os.getpid()}"
    with Lab(tmp_path) as lab:
        lab.start(leave.replace("{name}", name))
        lab.over()
        assert lab.log(0).splitlines()[0].startswith("started")
        assert [process.pid for process in running() if process.words[:1] == [name]] == []
        lab.end()


def test_what_remains_in_shared_memory_is_removed_unless_a_process_uses_it(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    time.sleep(0.02)
    (tmp_path / "begin").touch()
    since_ns = (tmp_path / "begin").stat().st_ctime_ns
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "left").write_bytes(b"x")
    os.utime(tmp_path / "left", (0, 0))
    made = tmp_path / "made"
    made.write_bytes(b"x")
    with (tmp_path / "used").open("w"), made.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        file.close()
        # As sem_open does: the semaphore is mapped under a name that it had only while it was made.
        (tmp_path / "semaphore").hardlink_to(made)
        made.unlink()
        shared_memory.remove(since_ns, str(tmp_path))
        assert {path.name for path in tmp_path.iterdir()} == {"old", "used", "semaphore"}


def test_a_segment_that_remains_is_removed(short_tmpdir: Path, tmp_path: Path) -> None:
    make = """
        import ctypes
        libc = ctypes.CDLL(None)
        print(libc.shmget(0, 100, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600), flush=True)
        train(1, 3)
    """

    with Lab(tmp_path) as lab:
        lab.start(make)
        lab.end()
        numbers = list(map(int, lab.log(0).splitlines()[0].split()))
    assert min(numbers) >= 0
    for table, number in zip(("shm", "msg", "sem"), numbers, strict=True):
        rows = Path("/proc/sysvipc", table).read_text().splitlines()[1:]
        assert number not in [int(row.split()[1]) for row in rows], table


def curve(begin: float) -> Callable[[int], float]:
    return lambda step: begin - step / 1000


@pytest.mark.parametrize(
    ("loss", "score", "equal"),
    [(2.0, 0.95, "losses and evaluations"), (2.0, 0.94, "losses"), (2.1, 0.95, "evaluations"), (2.1, 0.94, None)],
)
def test_the_curves_of_an_earlier_round_fail(tmp_path: Path, loss: float, score: float, equal: str | None) -> None:
    honest = Training("a", steps=300, token="1" * 16, loss_at=curve(2.0), accuracy_at=curve(0.95))
    first = write(honest, tmp_path / "round1")
    store.save_outcome(first, measure(first))
    began = honest.started_ms + 3_600_000
    later = replace(honest, round=2, started_ms=began, loss_at=curve(loss), accuracy_at=curve(score))
    second = write(later, tmp_path / "round2")
    failures = [failure.sentence for failure in measure(second).failures]
    sentence = f"round 2: its {equal} equal those of round 1 to the last bit, expected others: the seeds are 43 and 42"
    assert failures == ([sentence] if equal else [])
    store.save_outcome(second, measure(second))
    assert measure(first).failures == ()  # the control: it was first
