"""Tiny suites of the standard library alone, and rounds of them: what the tests of rounds share."""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flagperf_driver.node.device_lease import owner
from flagperf_driver.target import Target
from pytest_flagperf.case import Case
from pytest_flagperf.engines.agents.agents import Acquisition, Agents, DeviceRequest
from pytest_flagperf.engines.agents.run_round import RoundOptions, run_round
from pytest_flagperf.hosts import Host, HostLost
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.plan import Plan
from pytest_flagperf.runtime import Interpreter
from pytest_flagperf.stored.plan import LeftOutTimeLimits, Value
from pytest_flagperf.stored.round_dir import RoundRecord
from tests.helpers.processes import running

HEAD = """
from flagperf_driver import driver, events
import os, signal, subprocess, sys, time
"""
# It trains like a suite; a test sets `fault(rank, step)` to make it fail.
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


def tiny_plan(
    nproc: int = 2,
    nnodes: int = 1,
    visible_devices: str | None = None,
    device: str = "cpu",
    config: Mapping[str, Any] | None = None,
) -> Plan:
    """A plan for the suite that ``write_suite`` writes."""
    values = {
        "seed": 42, "max_steps": 3, "step_s": 0.01, "silent_ranks": [], "init_timeout_s": 20, "hang_timeout_s": 20,
        "round_timeout_s": None, "data_dir": None, "precision": "fp32", "scaling": "weak",
        "parity_samples": None, "stop_at_target": True, **(config or {}),
    }  # fmt: skip
    return Plan(
        case=Case.parse(f"tiny:plain:Core:{nnodes}:{nproc}:1"), vendor="nobody", scale="small", synthetic=False,
        throughput_only=False, metric=Target("accuracy", "higher", "fraction", 0.8, range=(0.0, 1.0)),
        sample_unit="lines", left_out=LeftOutTimeLimits(),
        device=device, backend="none", modules=(), device_module=None,
        chip_names=(), replaced_vendor="", visible_devices=visible_devices, runtime="host", extern=None,
        values={key: Value(value, "tests/helpers/rounds.py", 0, "defaults") for key, value in values.items()},
        deviations=(), additions=(), manifest=(), flops_per_sample=None, peak_tflops=None, min_efficiency=0.0,
        fingerprint={},
    )  # fmt: skip


class Elsewhere(LocalHost):
    """The local machine as a remote host."""

    is_local = False


class Away(Elsewhere):
    """A host that cannot be reached again."""

    def reconnect(self) -> None:
        raise HostLost(f"{self.name}: no answer")


def write_suite(root: Path, fault: str = WELL, *, before: str = "") -> Path:
    """A suite ``tiny`` in the framework ``plain``, and the folder that holds it."""
    folder = root / "suites" / "tiny" / "plain"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run_pretraining.py").write_text(HEAD + before + fault + BODY, "utf-8")
    return root / "suites" / "tiny"


def run_tiny(
    tmp_path: Path,
    plan: Plan,
    fault: str = WELL,
    *,
    before: str = "",
    number: int = 1,
    directory: Path | None = None,
    hosts: Iterable[Host] | None = None,
    lease_s: float = 0.0,
) -> RoundRecord:
    chosen = tuple(hosts) if hosts is not None else tuple(LocalHost(f"h{k}") for k in range(plan.case.nnodes))
    directory = directory or tmp_path / "round1"
    code = pack({"suites/tiny": write_suite(tmp_path, fault, before=before)})
    request = DeviceRequest(
        nnodes=plan.case.nnodes,
        nproc=plan.case.nproc,
        # Hosts of these tests may be one machine under several names: each must find devices of its own.
        devices_per_host=plan.case.nproc * plan.case.nnodes,
        whole_host=False,
        owner=owner(case=str(plan.case)),
        name=f"tiny-{os.getpid()}-{tmp_path.name}",
        directory=directory,
        lease_s=lease_s,
        lease_here_s=lease_s,
    )
    with Agents() as agents:
        Acquisition(HostPool(chosen), code, request, agents).run()
        return run_round(
            plan,
            number,
            directory,
            agents=agents,
            interpreters={host.name: Interpreter(sys.executable) for host in chosen},
            options=RoundOptions(),
        )


def processes_of(directory: Path) -> list[str]:
    """Everything that runs for a round's directory, by the environment that all its processes inherit."""
    mine = [each for each in running() if each.environment.get("FLAGPERF_LOG_DIR") == str(directory)]
    return [f"{each.pid} {each.line}" for each in mine]
