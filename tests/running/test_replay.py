"""The states that a training saves for its replay, the drawn segment, and the plan of the clean process."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from flagperf_driver import heartbeat, layout
from flagperf_driver.node.agent import state_requests
from flagperf_driver.node.agent.state_requests import StateRequests
from flagperf_driver.training.saved_states import SavedStates
from pytest_flagperf.case import Case
from pytest_flagperf.plan import PlanRequest, clean_plan, make_plan, one_card_plan, short_plan
from pytest_flagperf.running.replay import drawn, kept_segments, repeated_share, runs_vendor_code, with_states
from pytest_flagperf.stored import FormatError
from tests.helpers.trees import tree, write


class Host:
    """A host on which the agent asks a training for states, each step of which takes a second."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now = folder, 0.0
        monkeypatch.setattr(state_requests, "time", SimpleNamespace(monotonic=lambda: self.now))
        rank: Any = SimpleNamespace(
            case=SimpleNamespace(replay={"states": str(folder / "states")}), log_dir=folder,
            world=SimpleNamespace(rank=0),
        )  # fmt: skip
        self.agent, self.states = StateRequests(folder), SavedStates(rank)
        self.beats = heartbeat.Heartbeat(folder / "rank0.progress")
        self.saved: list[int] = []
        self.states.begin()
        self.save(0)

    def save(self, step: int) -> None:
        (self.folder / f"states/step{step}").mkdir()
        for path in self.states.add(step):
            path.rmdir()
        self.saved.append(step)

    def train(self, steps: int) -> dict[str, Any]:
        for step in range(1, steps + 1):
            self.now = float(step)
            self.beats.beat(step, heartbeat.TRAIN)
            self.agent.process()
            if step % 5 == 0 and step < steps and (self.folder / layout.SAVE_STATE).exists():
                self.save(step)
        self.states.end()
        self.save(steps)
        return self.agent.to_json()

    @property
    def present(self) -> list[int]:
        return sorted(int(path.name[4:]) for path in (self.folder / "states").iterdir())


@pytest.mark.parametrize("steps", [3, 12, 200, 3000])
def test_few_states_are_kept_and_each_segment_has_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    host = Host(tmp_path, monkeypatch)
    asked = host.train(steps)
    assert len(host.saved) == asked["saved"] + 2 >= (2 if steps < 20 else 5)
    assert len(host.present) <= 10
    kept, last_two = kept_segments(host.saved, asked)
    assert len(kept) == min(max(asked["saved"] - 1, 0), state_requests.MOST_KEPT)
    assert last_two[-1][1] == steps
    segments = drawn(host.saved, asked)
    assert sorted(segments) == sorted([*kept, *last_two])
    for first, last in segments:
        assert {first, last} <= {*host.present}
        assert last - first >= min(state_requests.SHORTEST_STEPS, steps)


def test_segments_are_drawn_by_their_share_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    middles, first_drawn = [], []
    for number in range(60):
        (tmp_path / str(number)).mkdir()
        host = Host(tmp_path / str(number), monkeypatch)
        seen = host.train(300)
        middles += [sum(segment) / 2 for segment in kept_segments(host.saved, seen)[0]]
        first_drawn.append(drawn(host.saved, seen)[0][1])
    assert 110 < fmean(middles) < 175, "of all but the last two; the mean of the last kept ones would be above 250"
    assert 110 < fmean(first_drawn) < 210


@pytest.mark.parametrize("asked", [{}, {"saved": 3, "kept": [3]}, {"saved": 1, "kept": [1]}, {"saved": 1}])
def test_states_that_nobody_asked_for_are_an_error(asked: Any) -> None:
    assert kept_segments([0, 10, 20], {"saved": 1, "kept": []}) == ([], [(0, 10), (10, 20)])
    assert kept_segments([0, 10, 20, 30, 40], {"saved": 3, "kept": [1]}) == ([(0, 10)], [(20, 30), (30, 40)])
    assert kept_segments([15, 30, 45, 60], {"saved": 2, "kept": [1]})[0] == [(15, 30)], "after a restart"
    assert kept_segments([15, 30], {"saved": 0, "kept": []}) == ([], [(15, 30)])
    with pytest.raises(FormatError, match="the agent"):
        kept_segments([0, 10, 20], asked)


def test_repeated_steps_and_an_evaluation_take_a_twentieth_of_the_time() -> None:
    trainings = [(1000, 0), (1000, 20), (1000, 60), (36_000, 400)]  # seconds of each and of its last evaluation
    assert [round(repeated_share(*one) * one[0]) for one in trainings] == [50, 30, 0, 180]


def test_the_clean_process_has_nothing_of_the_vendor_but_a_device_of_its_own(tmp_path: Path) -> None:
    catalog = tree(tmp_path, "precision = 'fp32'\n")
    write(tmp_path, "vendors/acme/toy-pytorch/extern/trainer_adapter.py", "def backward(ctx, loss, scaler): ...\n")
    write(tmp_path, "vendors/acme/device.py", "def seed(device, value): ...\n")
    asked = PlanRequest(Case.parse("toy:pytorch:X9:1:8:1"), vendor="acme", synthetic=True)
    plan = replace(make_plan(catalog, asked), replay={"states": "/states"})
    assert runs_vendor_code(plan)
    segment = {"states": "/states", "segments": [[10, 20]], "final": 40}
    foreign, own = clean_plan(plan, segment), clean_plan(replace(plan, device="cpu"), segment)
    assert (foreign.extern, foreign.additions) == (own.extern, own.additions) == (None, ())
    assert foreign.device_module == "vendors/acme/device.py", "acme needs it"
    assert own.device_module is None
    assert json.dumps(own.case_json(1, "/code")["replay"]) == json.dumps(segment)
    assert one_card_plan(plan).replay == short_plan(plan).replay == {}
    ended: list[Any] = []
    engine: Any = SimpleNamespace(end_replay=lambda *ended_: ended.extend(ended_))
    kept, folder = plan.with_values("a test", checkpoint_dir=str(tmp_path)), tmp_path / "run/case/round1"
    with suppress(KeyboardInterrupt), with_states(kept, engine, 1, folder) as own:
        raise KeyboardInterrupt
    assert ended == [own, 1, folder]
    assert own.replay["states"] == str(tmp_path / "run-case-round1.states")
