"""Tiny suites of the standard library alone, and rounds of them: what the tests of rounds share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flagperf_driver.node.lease import owner
from pytest_flagperf.engines.agents.acquire import Needs, muster
from pytest_flagperf.engines.agents.agents import Crew
from pytest_flagperf.engines.agents.orders import Wishes
from pytest_flagperf.engines.agents.round import RoundEnd, run_round
from pytest_flagperf.engines.agents.watch import Listener
from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.fleet import Fleet
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.runtime import Interpreter
from tests.processes import running

HEAD = """
from flagperf_driver import driver, events
import os, signal, subprocess, sys, time
"""
# One that trains as all do: `fault(rank, step)` is where a test puts what shall go wrong.
BODY = """
def main(rank):
    log, beat, number = rank.log, rank.heartbeat.beat, rank.world.rank
    beat(0, 0)
    log(events.INIT_END, {"init_time": rank.age()})
    log(events.TRAIN_START)
    for step in range(1, rank.config.max_steps + 1):
        fault(number, step)
        time.sleep(rank.config.step_s)
        beat(step, 1)
        log(events.STEP_END, {"step": step, "samples": step * 8, "loss": 1.0 / step, "throughput": 80.0})
    log(events.EVALUATE, {"step": step, "samples": 4, "accuracy": 0.9})
    log(events.TRAIN_END, {"reason": "target"})
    if number not in rank.config.silent_ranks:
        log(events.FINISHED, {"converged": True, "final_metrics": {"accuracy": 0.9}})
driver.run(main)
"""
WELL = "def fault(rank, step): pass\n"


@dataclass(frozen=True)
class TinyPlan:
    """The least that a round asks of a plan."""

    nproc: int = 2
    nnodes: int = 1
    launcher: str = "env"
    visible_devices: str | None = None
    device: str = "cpu"
    config: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        defaults = {
            "seed": 42,
            "max_steps": 3,
            "step_s": 0.01,
            "silent_ranks": [],
            "init_timeout_s": 20,
            "hang_timeout_s": 20,
            "round_timeout_s": None,
        }
        return {
            "case": f"tiny:plain:Core:{self.nnodes}:{self.nproc}:1",
            "model": "tiny",
            "framework": "plain",
            "vendor": "nobody",
            "hardware": "Core",
            "nnodes": self.nnodes,
            "nproc": self.nproc,
            "scale": "small",
            "synthetic": False,
            "throughput_only": False,
            "metric": {"name": "accuracy", "direction": "higher", "unit": "fraction", "target": 0.8},
            "sample_unit": "lines",
            "device": self.device,
            "backend": "none",
            "modules": [],
            "device_module": None,
            "data_dir": None,
            "config": {**defaults, **self.config},
        }

    def case_json(self, round_number: int, seed: int, code_root: str) -> dict[str, Any]:
        extra = {"schema": 1, "round": round_number, "seed": seed, "extern": None}
        return {**self.to_json(), **extra}


def write_suite(root: Path, fault: str = WELL, *, before: str = "") -> Path:
    """A suite ``tiny`` in the framework ``plain``, and the folder that holds it."""
    folder = root / "suites" / "tiny" / "plain"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run_pretraining.py").write_text(HEAD + before + fault + BODY, "utf-8")
    return root / "suites" / "tiny"


def run_tiny(
    tmp_path: Path,
    plan: TinyPlan,
    fault: str = WELL,
    *,
    before: str = "",
    number: int = 1,
    directory: Path | None = None,
    hosts: Iterable[Host] | None = None,
    python: str = sys.executable,
    listener: Listener = lambda _: None,
    wishes: Wishes | None = None,
    lease_s: float = 0.0,
    devices: int | None = None,
) -> RoundEnd:
    chosen = tuple(hosts) if hosts is not None else tuple(LocalHost(f"h{k}") for k in range(plan.nnodes))
    directory = directory or tmp_path / "round1"
    code = pack({"suites/tiny": write_suite(tmp_path, fault, before=before)})
    needs = Needs(
        nnodes=plan.nnodes,
        nproc=plan.nproc,
        # Hosts of these tests may be one machine under several names: each must find devices of its own.
        devices_per_host=devices or plan.nproc * plan.nnodes,
        whole_host=False,
        owner=owner(),
        name=f"tiny-{os.getpid()}-{tmp_path.name}",
        directory=directory,
        lease_s=lease_s,
        lease_here_s=lease_s,
    )
    with Crew() as crew:
        muster(Fleet(chosen), code, needs, crew)
        return run_round(
            plan,
            number,
            directory,
            crew=crew,
            interpreters={host.name: Interpreter(python) for host in chosen},
            listener=listener,
            wishes=wishes or Wishes(),
        )


def processes_of(directory: Path) -> list[str]:
    """Everything that runs for a round's directory, by the environment that all its processes inherit."""
    mine = [each for each in running() if each.environment.get("FLAGPERF_LOG_DIR") == str(directory)]
    return [f"{each.pid} {each.line}" for each in mine]
