"""The examples of docs/ci: their shell steps run in a namespace of their own, on two commits; the second is slower.

In the namespace the checkout of pytest-flagperf and the user's cache are hidden. The examples install the wheel,
measure toy suites, compare and write the comment. Only what the CI systems do themselves is simulated: caches and
conditions.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs

import pytest
import yaml

from tests.helpers.walk import git

from .conftest import QUIET, Toy

pytestmark = pytest.mark.slow
MARK = "<!-- flagperf compare -->"
"""The first line of a comment, by which a CI job finds its earlier one."""
REPO = Path(__file__).resolve().parents[2]
EXAMPLES = REPO / "docs" / "ci"
RATE = "    rate = config.speed"
SLOWER = "    rate = 0.85 * config.speed"
SELECT = "suites --nodes=1x1 --repeat=3 -k alpha"


class Sandbox:
    """A project with toy suites in a git repository, and a namespace in which steps run."""

    def __init__(self, folder: Path) -> None:
        self.project, self.home, self._folder = folder / "project", folder / "home", folder
        self.home.mkdir()
        self.project.mkdir()
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
        subprocess.run(build, cwd=REPO, check=True, capture_output=True)
        (wheel,) = (folder / "dist").glob("*.whl")
        self._wheel = wheel
        shutil.copytree(QUIET, folder / "quiet")
        toy = Toy(cast(pytest.Pytester, SimpleNamespace(path=self.project)))
        toy.suite("alpha")
        (self.project / ".gitignore").write_text(".venv/\nreports/\nbaseline/\ncomment.md\n")
        git(self.project, "init", "--quiet", "--initial-branch=main")
        self.commit("Measure alpha")

    def commit(self, subject: str) -> None:
        git(self.project, "add", "--all")
        git(self.project, "commit", "--quiet", "-m", subject)

    def slow_down(self) -> None:
        """Commit a change that makes the training 15 % slower."""
        program = self.project / "suites" / "alpha" / "plain" / "run_pretraining.py"
        text = program.read_text()
        assert text.count(RATE) == 1
        program.write_text(text.replace(RATE, SLOWER))
        self.commit("Slow alpha down")

    def forget_reports(self) -> None:
        """Do what a checkout does at the start of a job."""
        for name in ("reports", "comment.md"):
            path = self.project / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def run(self, step: str, environment: Mapping[str, str], *shell: str) -> subprocess.CompletedProcess[str]:
        """Run a step with the shell and the options of its CI system."""
        keep = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
        given = {
            **keep, "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home),
            "WHEEL": str(self._wheel), "PYTHONPATH": str(self._folder / "quiet"),
            "PYTEST_PLUGINS": "quiet_machine", "FLAGPERF_LEASES": str(self._folder / "leases"), "SELECT": SELECT,
            **environment,
        }  # fmt: skip
        hide = "".join(f"mount -t tmpfs none {place}\n" for place in (REPO, Path.home() / ".cache") if place.exists())
        inner = ["env", "-i", *(f"{name}={value}" for name, value in given.items()), *shell, "-c", step]
        script = f'set -e\n{hide}cd "$0"\nexec "$@"\n'
        command = [
            "unshare", "--mount", "--pid", "--fork", "--mount-proc", "bash", "-c", script, str(self.project), *inner,
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    works = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    if works.returncode:
        text = f"no namespace for the examples: {works.stderr.decode().strip()}"
        pytest.fail(text, pytrace=False) if request.config.getini("strict") else pytest.skip(text)
    return Sandbox(tmp_path_factory.mktemp("ci"))


@pytest.fixture
def project(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The sandbox with the first commit, without runs of an earlier test."""
    sandbox.forget_reports()
    for folder in (sandbox.project / "baseline", sandbox.home / "flagperf-main"):
        shutil.rmtree(folder, ignore_errors=True)
    yield sandbox
    program = sandbox.project / "suites" / "alpha" / "plain" / "run_pretraining.py"
    if SLOWER in program.read_text():
        program.write_text(program.read_text().replace(SLOWER, RATE))
        sandbox.commit("Restore alpha")


def expect_comment(text: str) -> None:
    assert text.startswith(f"{MARK}\n### ❌ flagperf: 1 of 1 case regressed: run")
    row = next(line for line in text.splitlines() if line.startswith("| ❌"))
    assert "<code>alpha:plain:CPU:1:1:3</code> | p_core | 100 samples/s | 85 samples/s | -15.0 %" in row
    assert row.endswith("| **worse** |")
    assert "suite\\_code" in text or "suite_code" in text, "the changed code is noted"


CONDITIONS = {
    "": ("push", "pull_request", "schedule"),
    "github.event_name != 'push'": ("pull_request", "schedule"),
    "github.event_name != 'pull_request'": ("push", "schedule"),
}


class GitHub:
    """A runner that runs the shell steps of the example."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        (self._job,) = yaml.safe_load((EXAMPLES / "github.yml").read_text())["jobs"].values()
        self.summary = sandbox.home / "summary.md"

    def job(self, event: str) -> dict[str, subprocess.CompletedProcess[str]]:
        """Run the steps of an event up to the first that fails."""
        self.summary.unlink(missing_ok=True)
        path = self._sandbox.home / "path"
        path.write_text("")
        done: dict[str, subprocess.CompletedProcess[str]] = {}
        for step in self._job["steps"]:
            if "run" not in step or event not in CONDITIONS[step.get("if", "")]:
                continue
            first = "".join(f"{line}:" for line in reversed(path.read_text().splitlines()))
            environment = {
                "GITHUB_ACTIONS": "true", "CI": "true", "GITHUB_WORKSPACE": str(self._sandbox.project),
                "GITHUB_PATH": str(path), "GITHUB_STEP_SUMMARY": str(self.summary),
                "PATH": f"{first}{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            }  # fmt: skip
            done[step["name"]] = self._sandbox.run(step["run"], environment, "bash", "-e")
            if done[step["name"]].returncode:
                break
        return done


def test_github_fails_a_pull_request_that_is_slower_and_comments(project: Sandbox) -> None:
    github = GitHub(project)
    done = github.job("push")
    assert {name: (one.returncode, one.stderr) for name, one in done.items() if one.returncode} == {}
    assert list(done) == ["Install", "Measure", "Add this run to the runs of main"]
    assert len(list((project.project / "baseline").glob("run*"))) == 1
    project.forget_reports()
    same = github.job("schedule")
    # On a busy machine chance may change p_whole by more than half: then the answer is 2, not 1.
    assert same["Compare with main"].returncode == (0 if len(same) == 4 else 2), same["Compare with main"].stdout
    assert "regressed" not in (project.project / "comment.md").read_text()
    project.forget_reports()
    project.slow_down()
    slow = github.job("pull_request")
    assert {name: one.returncode for name, one in slow.items()} == {"Install": 0, "Measure": 0, "Compare with main": 1}
    comment = (project.project / "comment.md").read_text()
    expect_comment(comment)
    summary = github.summary.read_text()
    assert summary.startswith("### flagperf: 1 of 1 case passed")
    assert summary.endswith(comment)


def test_github_keeps_the_newest_twenty_runs(project: Sandbox) -> None:
    for number in range(25):
        (project.project / "baseline" / f"run20260101{number:06}").mkdir(parents=True)
    (project.project / "reports" / "run20261124000000").mkdir(parents=True)
    step = next(each["run"] for each in GitHub(project)._job["steps"] if each.get("id") == "keep")
    assert project.run(step, {}, "bash", "-e").returncode == 0
    kept = sorted(path.name for path in (project.project / "baseline").iterdir())
    assert (len(kept), kept[0], kept[-1]) == (20, "run20260101000006", "run20261124000000")


@pytest.fixture
def notes() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """A server of GitLab's API, and the notes that it received: path, token and text."""
    received: list[tuple[str, str, str]] = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            received.append((self.path, self.headers["PRIVATE-TOKEN"], form["body"][0]))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api/v4", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_gitlab_fails_a_slower_merge_request(project: Sandbox, notes: tuple[str, list[tuple[str, str, str]]]) -> None:
    address, received = notes
    file = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())
    environment = {
        "GITLAB_CI": "true", "CI": "true", "CI_PROJECT_DIR": str(project.project), "CI_API_V4_URL": address,
        "CI_PROJECT_ID": "7", "CI_MERGE_REQUEST_IID": "3", "FLAGPERF_TOKEN": "secret",
        "FLAGPERF_CACHE": str(project.project / ".cache" / "flagperf"),
    }  # fmt: skip

    def job(name: str) -> subprocess.CompletedProcess[str]:
        parts = {**file[".flagperf"], **file[name]}
        script = "\n".join([*parts["before_script"], *parts["script"]])
        done = project.run(script, environment, "bash", "-eo", "pipefail")
        after = "\n".join(parts.get("after_script", []))
        assert project.run(after, environment, "bash", "-eo", "pipefail").returncode == 0
        return done

    first = job("flagperf-merge-request")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "no run of main is stored yet" in first.stdout
    assert received == []
    project.forget_reports()
    assert job("flagperf-main").returncode == 0
    project.forget_reports()
    project.slow_down()
    assert job("flagperf-merge-request").returncode == 1
    ((path, token, text),) = received
    assert (path, token) == ("/api/v4/projects/7/merge_requests/3/notes", "secret")
    expect_comment(text)


def test_jenkins_fails_a_pull_request_that_is_slower(project: Sandbox) -> None:
    text = (EXAMPLES / "Jenkinsfile").read_text()
    assert text.count("{") == text.count("}")
    stages = dict(re.findall(r"stage\('([^']+)'\).*?sh '''\n(.*?)'''", text, re.DOTALL))
    assert list(stages) == ["Install", "Measure", "Compare with main", "Keep the run of main"]
    environment = {"WORKSPACE": str(project.project), "CI": "true"}

    def stage(name: str) -> int:
        return project.run(stages[name], environment, "sh", "-xe").returncode

    assert [stage(name) for name in ("Install", "Measure", "Keep the run of main")] == [0, 0, 0]
    project.slow_down()
    assert [stage(name) for name in ("Install", "Measure", "Compare with main")] == [0, 0, 1]
    expect_comment((project.project / "comment.md").read_text())
    (run,) = (project.project / "reports").glob("run*")
    facts = json.loads((run / "results.json").read_text())
    assert facts["run"]["not_run"] == []
