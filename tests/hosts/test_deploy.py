"""Code is staged by content: once, completely, and only the given folders."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_flagperf.hosts import HostError, Message
from pytest_flagperf.hosts.deploy import Code, attach, call_module, open_module, pack, stage, sweep
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.hosts.replies import PATH, TEXT, Shape
from tests.engines.agents.test_preflight import IDLE, running
from tests.helpers.trees import write

pytestmark = pytest.mark.usefixtures("fresh_cache")
HOST = LocalHost("here")
CALLED = """
import json, sys
request = json.loads(sys.stdin.readline())
print(json.dumps({"type": "progress", "line": "working"}), flush=True)
if request["op"] == "fail":
    print(json.dumps({"type": "error", "sentence": "it cannot be done"}), flush=True)
elif request["op"] == "die":
    sys.exit("out of luck")
elif request["op"] == "sleep":
    sys.stdin.read()
else:
    print(json.dumps({"type": "answer", "path": sys.path[0], "argv": sys.argv}), flush=True)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    write(folder, "pytorch/run.py", "print(1)\n")
    write(folder, "pytorch/__pycache__/run.pyc", "compiled")
    write(folder, "tool.sh", "#!/bin/sh\n").chmod(0o755)
    return folder


def files(root: str) -> set[str]:
    return {str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file()}


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_cache_that_others_can_change_is_refused(tmp_path: Path, mode: int) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(HostError, match=rf"other users can write to the cache {cache}: run chmod go-w {cache}, or set"):
        stage(HOST, pack({}))
    assert not [*cache.iterdir()]
    cache.chmod(0o755)
    assert stage(HOST, pack({}))  # the control


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_cache_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", 12345, 12345)
    with pytest.raises(HostError, match=r"cache belongs to user 12345, not to 0: set FLAGPERF_CACHE to a folder of"):
        stage(HOST, pack({}))


def test_a_new_cache_can_be_changed_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        stage(HOST, pack({}))
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o755


def test_the_tree_holds_only_the_driver_which_runs_and_the_given_folders(suite: Path) -> None:
    root = stage(HOST, pack({"suites/m": suite}))
    assert {path.name for path in Path(root).iterdir()} == {"flagperf_driver", "suites", "lib"}
    assert {name for name in files(root) if name.startswith("lib")} == {"lib/pynvml.py"}
    assert {one for one in files(root) if one.startswith("suites")} == {"suites/m/pytorch/run.py", "suites/m/tool.sh"}
    assert "flagperf_driver/perflog.py" in files(root)
    assert os.access(f"{root}/suites/m/tool.sh", os.X_OK)
    assert not os.access(f"{root}/suites/m/pytorch/run.py", os.X_OK)
    # The driver runs with nothing else on the path.
    look = "import sys; sys.path.insert(0, sys.argv[1]); import flagperf_driver.perflog as p; print(p.__file__)"
    argv = [sys.executable, "-I", "-S", "-c", look, root]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{root}/flagperf_driver/perflog.py"


def test_equal_content_is_staged_once_and_other_content_elsewhere(suite: Path) -> None:
    first = stage(HOST, pack({"suites/m": suite}))
    mark = Path(first) / "used"
    mark.touch()
    os.utime(suite / "tool.sh", (1, 1))  # the time of a file is not part of the content
    assert stage(HOST, pack({"suites/m": suite})) == first
    assert mark.exists()
    (suite / "tool.sh").write_text("#!/bin/sh\nexit 1\n")
    second = stage(HOST, pack({"suites/m": suite}))
    assert second != first
    (suite / "tool.sh").rename(suite / "other.sh")
    third = stage(HOST, pack({"suites/m": suite}))
    assert third not in (first, second)
    (suite / "other.sh").chmod(0o644)
    assert stage(HOST, pack({"suites/m": suite})) not in (first, second, third)


def test_many_processes_that_stage_at_once_get_one_complete_tree(suite: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        roots = set(pool.map(lambda _: stage(HOST, pack({"suites/m": suite})), range(8)))
    (root,) = roots
    assert "suites/m/pytorch/run.py" in files(root)
    assert [path.name for path in (tmp_path / "cache" / "code").iterdir()] == [Path(root).name]


def test_links_are_followed_and_a_cycle_ends(suite: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "shared.py").touch()
    (suite / "linked").symlink_to(elsewhere)
    (suite / "circle").symlink_to(suite)
    staged = files(stage(HOST, pack({"suites/m": suite})))
    assert "suites/m/linked/shared.py" in staged
    driver = [name for name in staged if name.startswith("flagperf_driver/")]
    assert len(staged) - len(driver) < 30


def test_a_missing_folder_is_named_and_so_is_why_a_host_cannot_store_the_code(suite: Path, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="/no/such: folder not found; the hosts need it as suites/m"):
        pack({"suites/m": Path("/no/such")})
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(HostError, match=r"here: cannot store the code: (File exists|Not a directory)"):
        stage(HOST, pack({"suites/m": suite}))


def test_the_sweep_ends_only_processes_of_a_log_folder(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "ab"
    one_of, other_of = (running(IDLE, FLAGPERF_LOG_DIR=folder) for folder in folders)
    with one_of as one, other_of as other:
        swept = sweep(HOST, pack({}), str(tmp_path / "a"), None)
        assert swept == ([f"python (pid {one.pid})"], [])
        assert (one.wait(5), other.poll()) == (-9, None)


def test_an_engine_that_does_not_answer_may_keep_a_rounds_container(tmp_path: Path) -> None:
    swept, (problem,) = sweep(HOST, pack({}), str(tmp_path), str(tmp_path / "docker.sock"))
    assert swept == []
    assert problem.startswith("the container of the round may remain until the next run on this host removes it: ")
    assert f"{tmp_path}/docker.sock not found: Docker is not installed" in problem


@pytest.fixture
def called(tmp_path: Path) -> Code:
    (tmp_path / "called.py").write_text(CALLED)
    return pack({"called.py": tmp_path / "called.py"})


def test_a_called_module_answers(called: Code) -> None:
    messages: list[Message] = []
    for _ in range(2):  # the second time the code is deployed already
        shape: Shape = {"path": PATH, "argv": [TEXT]}
        answer = call_module(
            HOST, called, "called", {"op": "go"}, timeout_s=20, shape=shape, on_message=messages.append
        )
        assert answer == {"path": stage(HOST, called), "argv": [f"{answer['path']}/called.py"]}
    assert messages == [{"type": "progress", "line": "working"}] * 2


@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("fail", "^here: it cannot be done$"),
        ("die", "here: called by .* failed with exit code 1: out of luck"),
        ("sleep", "here: called did not answer in time"),
    ],
)
def test_a_failed_call_reports_why(called: Code, op: str, says: str) -> None:
    with pytest.raises(HostError, match=says):
        call_module(HOST, called, "called", {"op": op}, timeout_s=1 if op == "sleep" else 30, shape={})


def test_a_missing_module_is_named_and_deployed_code_is_a_digest(called: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostError, match="No module named nowhere"):
        call_module(HOST, called, "nowhere", {}, timeout_s=20, shape={})
    channel = open_module(HOST, called, "called")
    channel.send({"op": "go"})
    assert channel.receive(20) == {"type": "progress", "line": "working"}
    assert (channel.receive(20) or {})["type"] == "answer"
    assert channel.close() == 0
    stage(HOST, called)
    present = Code(called.digest, b"not sent")
    assert stage(HOST, present) == stage(HOST, called)
    assert "archive" not in vars(present)  # not even compressed
    with pytest.raises(HostError, match="here: cannot store the code: file could not be opened"):  # the archive is sent
        stage(HOST, Code("0" * 32, b"no archive"))


def test_attaching_without_an_agent_reports_the_last_agents_message(tmp_path: Path) -> None:
    says = (
        f"the host was restarted, or the agent was killed: no agent listens in {tmp_path} (No such file or directory)"
    )
    with pytest.raises(HostError, match=re.escape(f"{says}; no agent left a message")):
        attach(HOST, str(tmp_path))
    (tmp_path / "agent.json").write_text('{"state": "ended", "reason": "its lease was over"}\n')
    with pytest.raises(HostError, match=r"the last agent's message: .*its lease was over"):
        attach(HOST, str(tmp_path))
