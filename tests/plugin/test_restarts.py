"""--restarts: a training that ended early is started again from its last checkpoint."""

import json
from pathlib import Path

import pytest

from .conftest import Toy

pytestmark = pytest.mark.slow
CASE = "alpha_plain_CPU_1_1_1"


def run(toy: Toy, fault: str, *arguments: str) -> tuple[pytest.RunResult, Path]:
    folder = toy.root / "checkpoints"
    folder.mkdir()
    result = toy.run(
        "suites/alpha", "-k", "converges", "--nodes=1x1", f"--set=fault={fault}", f"--set=checkpoint_dir={folder}",
        "--set=checkpoint_steps=2", *arguments,
    )  # fmt: skip
    return result, toy.runs[-1] / CASE


def test_a_training_whose_rank_is_killed_goes_on_from_its_checkpoint(toy: Toy) -> None:
    result, case = run(toy, "kill_once", "--restarts=3")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*alpha:plain:CPU:1:1:1 round 1: rank 0*SIGKILL*: restart 1 of 3*"])
    assert sorted(path.name for path in case.glob("*round1")) == ["failed1-round1", "round1"]
    outcome = json.loads((case / "round1" / "outcome.json").read_text())
    assert [(start["from_step"], start["kind"]) for start in outcome["starts"]] == [(0, "crash"), (2, "")]
    assert [step["step"] for step in outcome["steps"]] == list(range(1, 17))
    assert [warning["kind"] for warning in outcome["validity_warnings"]] == ["restarted"]
    plans = [json.loads((case / name / "plan.json").read_text()) for name in ("failed1-round1", "round1")]
    assert plans[0]["training"] == plans[1]["training"]
    assert plans[0]["token"] != plans[1]["token"]


def test_restarts_require_checkpoints(toy: Toy) -> None:
    result = toy.run("suites/alpha", "--nodes=1x1", "--restarts=3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--restarts=3: a training continues from its last checkpoint; pass --set=check*"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--drill=rank"], "*drill = rank (command line): needs --restarts=1 or more: each rank or host ends a start"),
        (["--drill=disk", "--restarts=1"], "*drill = 'disk' (command line): 'disk': expected rank, host, link, each *"),
        (["--drill=rank,rank", "--restarts=2"], "*'rank': expected rank, host, link, each at most once*"),
        (["--drill=link", "--restarts=1"], "*--drill=link: only rank can strike on this machine; host and link need *"),
        (["--drill=rank", "--restarts=1", "--throughput-only"], "*the case measures only throughput; expected a *"),
        (["--min-goodput=1.5"], "*min-goodput = 1.5 (command line): expected a share, at most 1"),
    ],
)
def test_a_drill_that_cannot_strike_is_refused(toy: Toy, arguments: list[str], words: str) -> None:
    result = toy.run("suites/alpha", "--nodes=1x1", "--set=checkpoint_dir=/c", "--set=checkpoint_steps=2", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([words])


GOAL = '\n[goal]\nchip = "H100"\nrate = 1.0\nbatch = 1.0\nsource = "a"\nmin_goodput = 0.99\n'


@pytest.mark.parametrize(("goal", "least"), [("", "--min-goodput=0.99"), (GOAL, "--min-goodput=0")])
def test_a_killed_rank_is_a_drill_whose_goodput_is_judged(toy: Toy, goal: str, least: str) -> None:
    """The toy logs no time, of which goodput would be a share: what is missing fails."""
    (table,) = (toy.pytester.path / "suites/alpha").glob("*/suite.toml")
    table.write_text(table.read_text() + goal)
    result, case = run(toy, "none", "--restarts=1", "--set=step_s=0.1", "--drill=rank", "--drill-here", least)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*drill: rank 0 on localhost was killed at step *",
            "*goodput is missing, expected at least 99.0 % (--min-goodput, or the suite's goal)",
        ]
    )
    (path,) = case.glob("verdicts/*.json")
    verdicts = {one["name"]: one["ok"] for one in json.loads(path.read_text())["verdicts"]}
    assert (verdicts["drill"], verdicts["goodput"]) == (True, False)
