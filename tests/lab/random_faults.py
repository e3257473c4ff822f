"""Random faults in trainings with --restarts, each drawn by its seed: `python -m tests.lab.random_faults 1-100`.

Each training runs on three or four of the four hosts of a lab of its own; several labs run at once. It must finish with
the figures of an undisturbed training, or end with a reason, and leave nothing on the hosts. With ``--reach`` the hosts
are containers, one on each machine of the lab, which ``docker exec`` reaches over the network.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import math
import queue
import random
import re
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.section import table
from flagperf_driver.heartbeat import Beat, read_heartbeat
from flagperf_driver.perflog import read_records
from tests.lab.lab import PYTHON, REPO, SSHD, Lab, LabHost
from tests.lab.needs import SLURM, SYSTEM_PATH, missing, missing_programs
from tests.lab.runs import POD, ClusterToy, left_on, leftovers
from tests.lab.slurm import Slurm
from tests.lab.test_faults_containers import kill_agent
from tests.lab.test_faults_links import CONFTEST
from tests.plugin.conftest import QUIET, SHARED_TRAINING, Toy

HOSTS = 4
STEPS = 120
BASE = """
learning_rate = 0.004
max_steps = 400
log_freq = 5
eval_steps = 20
eval_at_start = False
checkpoint_steps = 15
checkpoint_dir = "/shared"
"""
"""It reaches its target after 120 steps."""
EXACT = ("samples_to_target", "final_loss", "accuracy")
"""The figures that do not depend on the time."""
TIMES = ("p_", "step_time_mean", "time_to", "raw_", "train_", "pure_")
"""How the names of figures begin that a fault must not change, unless a validity warning speaks of them."""
WARNED = {"unreachable": TIMES, "busy": TIMES, "restarted": ("time_to",)}
"""The figures that conditions with a validity warning change: ranks that stood still, the time between two starts."""
CURVES = {"steps": ("step", "samples", "loss", "learning_rate"), "evaluations": ("step", "samples", "metrics")}
RESTART_WAIT_S = 150.0
"""Longer than each fault that does not last until the end."""
LENGTHS: Mapping[str, Sequence[float | None]] = {
    "cut 5 s": [5.0], "cut 30 s": [30.0], "cut 120 s": [120.0], "freeze": [5.0, 30.0, 120.0, None],
    "sshd": [1.0, 20.0, 120.0], "slurmd": [1.0, 20.0, 60.0], "dockerd": [5.0, 20.0, 120.0],
}  # fmt: skip
"""In seconds; None: until the end. The other faults have no length."""
KINDS = (
    "rank", "cut 5 s", "agent", "disk", "freeze", "slurmd", "cut 30 s", "agent and watchdog", "sshd", "cut 120 s",
)  # fmt: skip
POD_KINDS = tuple({"sshd": "dockerd", "slurmd": "exec"}.get(kind, kind) for kind in KINDS)
"""An engine that stands still, and the death of the process that ``docker exec`` has started."""


@dataclass(frozen=True)
class Pace:
    """How long the steps of a training take, and what silence means there."""

    step_s: float
    lease_s: int
    faults: float
    """How long faults last, as a share of their full length."""
    tolerance: float
    """How many times as long or as short a time may be without a validity warning."""
    conftest: str = ""


FULL = Pace(0.45, 60, 1.0, 1.25)
SHORT = Pace(
    0.06, 8, 1 / 12, 5.0,
    CONFTEST.format(more="")
    + "from pytest_flagperf.engines.agents import standstill\nstandstill.PATIENCE_S = 4.0\n",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What happens to the host of a rank, when after the trial's step, and for how long; None: until the end."""

    kind: str
    rank: int
    after_s: float
    lasts_s: float | None

    @classmethod
    def drawn(cls, rng: random.Random, kind: str, nodes: int, within_s: float, pace: Pace) -> Fault:
        lasts_s = rng.choice(LENGTHS.get(kind, [None]))
        lasts_s = None if lasts_s is None else lasts_s * pace.faults
        return cls(kind, rng.randrange(nodes), round(rng.uniform(0.0, within_s), 2), lasts_s)


@dataclass(frozen=True)
class Trial:
    """A training on so many hosts, its faults, and the step after which they come; 0: the ranks have begun."""

    seed: int
    nodes: int
    step: int = 0
    faults: tuple[Fault, ...] = ()

    @classmethod
    def drawn(cls, seed: int, pace: Pace, count: int = 1, kinds: Sequence[str] = KINDS) -> Trial:
        """Return the trial of a seed; the first faults of ten seeds in a row are one of each kind."""
        rng, kind = random.Random(f"fault {seed}"), kinds[(seed - 1) % len(kinds)]
        nodes, step = rng.choice((3, 3, 3, 4)), max(rng.randrange(-10, STEPS - 1), 0)
        faults = [Fault.drawn(rng, kind, nodes, pace.step_s, pace)]
        for _ in range(1, count):
            other = rng.choice([other for other in kinds if other != "slurmd"])
            faults.append(Fault.drawn(rng, other, nodes, (STEPS - step) * pace.step_s, pace))
        return cls(seed, nodes, step, tuple(faults))

    @property
    def kind(self) -> str:
        return " + ".join(fault.kind for fault in self.faults)


@dataclass
class Verdict:
    """What came of a trial; ``problems`` says what must not be."""

    trial: Trial
    hosts: list[str] = field(default_factory=list)
    """Those that the faults hit."""
    result: str = ""
    reason: str = ""
    starts: int = 1
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass
class FaultyTraining:
    """A training on a lab, and the faults that come over it."""

    lab: Lab
    folder: Path
    pace: Pace
    hosts: list[LabHost]
    nodes: int
    slurm: Slurm | None = None
    pods: bool = False
    away: set[str] = field(default_factory=set)
    """The hosts that did not answer at the end of the run."""
    back_at: dict[str, float] = field(default_factory=dict)
    """When the last fault of each host ended that lasted for a while."""
    last_strike: float = 0.0
    """When the last fault had struck; infinite if one did not."""

    def start(self) -> None:
        toy = Toy(cast(pytest.Pytester, types.SimpleNamespace(path=self.folder)))
        toy.suite("alpha", BASE, SHARED_TRAINING)
        (self.folder / "suites/conftest.py").write_text(self.pace.conftest)
        cluster = ClusterToy(toy, self.lab, self.hosts)
        options: dict[str, Any] = {"nodes": f"{self.nodes}x1", "runtime": "host", "lease_time": self.pace.lease_s}
        options["restart_wait"] = RESTART_WAIT_S * self.pace.faults
        env = {name: str(self.folder / name) for name in ("FLAGPERF_CACHE", "FLAGPERF_LEASES")}
        env |= {"PYTHONPATH": f"{QUIET}:{REPO}", "PYTEST_PLUGINS": "quiet_machine"}
        if self.pods:
            cluster.use_pods(**options)
        elif self.slurm is None:
            cluster.settings(**options)
        else:
            (self.folder / "flagperf.toml").write_text("[slurm]\n")
            cluster.set(cluster="slurm", lease="device", **options)
            env |= {"SLURM_CONF": str(self.slurm.conf), "PATH": f"{PYTHON.parent}:{SYSTEM_PATH}"}
        (self.lab.folder / "shared" / self.folder.name).mkdir(mode=0o777)
        self.going = cluster.start(
            "-k", "converges", "--restarts=5", f"--set=step_s={self.pace.step_s}",
            f"--set=checkpoint_dir=/shared/{self.folder.name}", env=env,
        )  # fmt: skip

    def starts(self) -> dict[Path, list[str]]:
        """The folders of the training's starts, the last one last, each with the hosts of its ranks."""
        plans = sorted(self.folder.glob("reports/run*/alpha*/*round1/plan.json"))
        return {plan.parent: [host["name"] for host in json.loads(plan.read_text())["hosts"]] for plan in plans}

    def beat(self) -> Beat | None:
        files = [file for host in self.hosts for file in host.root.glob("tmp/pytest-flagperf-*/rounds/*/*.progress")]
        return max(filter(None, map(read_heartbeat, files)), key=lambda beat: beat.time, default=None)

    def disturb(self, trial: Trial) -> list[str]:
        """Let the faults come and go until the run ends or takes too long; return the names of the hosts."""
        until_s = time.monotonic() + 120 + 15 * STEPS * self.pace.step_s
        step_at = math.inf
        hosts = {host.name: host for host in self.hosts}
        struck: dict[Fault, LabHost] = {}
        lasting: dict[Fault, Callable[[], object]] = {}
        while self.going.process.poll() is None and (now_s := time.monotonic()) < until_s:
            if step_at == math.inf and (beat := self.beat()) and beat.step >= trial.step:
                step_at = now_s
            for fault in trial.faults:
                begin_s = step_at + fault.after_s
                if fault not in struck and now_s >= begin_s:
                    struck[fault] = hosts[list(self.starts().values())[-1][fault.rank]]
                    if undo := self.strike(fault, struck[fault]):
                        lasting[fault] = undo
                    self.last_strike = time.time()
                elif fault in lasting and fault.lasts_s is not None and now_s >= begin_s + fault.lasts_s:
                    lasting.pop(fault)()
                    self.back_at[struck[fault].name] = time.time()
            time.sleep(0.05)
        for fault, undo in lasting.items():
            self.away.add(struck[fault].name)
            undo()
        if len(struck) < len(trial.faults):
            self.last_strike = math.inf
        return [struck[fault].name if fault in struck else "no host" for fault in trial.faults]

    def strike(self, fault: Fault, host: LabHost) -> Callable[[], object] | None:
        """Let a fault happen; return what ends it, if it lasts."""
        if fault.kind.startswith("cut"):
            host.link(up=False)
            return lambda: host.link(up=True)
        if fault.kind == "freeze":
            host.freeze()
            return host.thaw
        if fault.kind == "sshd":
            _kill(host, "sshd")
            return lambda: host.start([SSHD, "-E", "/var/log/sshd.log"])
        if fault.kind == "slurmd":
            assert self.slurm is not None
            _kill(host, "/slurmd")
            return functools.partial(self.slurm.start_node, host)
        if fault.kind == "dockerd":
            return _stop(host, "/dockerd")
        if fault.kind == "exec":
            _kill(host, "stdin.readline")
        elif fault.kind == "rank":
            _kill(host, "run_pretraining.py")
        elif fault.kind == "disk":
            host.run(["dd", "if=/dev/zero", "of=/tmp/fill", "bs=1M"], check=False)
        else:
            with suppress(AssertionError):  # no agent is left after the end of the round
                kill_agent(host, with_reaper="watchdog" in fault.kind)
        return None

    def judged(self, verdict: Verdict, undisturbed: Callable[[], Any] | None) -> Iterator[str]:
        """Yield what is wrong with the end of the run; the verdict gets what came of it."""
        code, text = self.going.process.poll(), self.going.text
        if code is None:
            yield "the run does not end"
            return
        if "Traceback" in text or "INTERNALERROR" in text:
            yield "the output has a traceback"
        starts = self.starts()
        *_, last = starts or [self.folder]
        verdict.starts = len(starts)
        if code == 0:
            logs = [io.BytesIO(log.read_bytes()) for log in last.glob("*/rank*.out.log")]
            end_ms = max(record.time_ms for log in logs for record in read_records(log, events=["TRAIN_END"]))
            verdict.result = "finished" if self.last_strike < end_ms / 1000 else "missed"
            lost = {
                start.name: own[0] for start, own in starts.items() if not [*start.glob("*_noderank0/rank0.out.log")]
            }
            away = self.away | {host for host, at in self.back_at.items() if at > end_ms / 1000}
            if back := set(lost.values()) - away:
                yield f"the log of rank 0 on {back} is missing"
            if undisturbed:
                outcome = json.loads((last / "outcome.json").read_text())
                yield from differences(outcome, undisturbed(), self.pace.tolerance, lost)
        elif code == 1:
            verdict.result, verdict.reason = "ended", reason_of(text)
            if not any(host in verdict.reason for host in verdict.hosts):
                yield "it ended without a reason that names a host"
            if self.nodes + len(set(verdict.hosts)) <= HOSTS:
                yield "it ended, although a spare host was there"
        else:
            yield f"exit code {code}"

    def leftovers(self, host: LabHost) -> list[str]:
        """Return what is left on a host, without logs that stay there for a week: the run could not reach it."""
        kept = host.name in self.away or f"the logs of {host.name} are missing here" in self.going.text
        left = [each for each in leftovers(host) if not (kept and each.startswith("folder ") and "/rounds/" in each)]
        return [each for each in left if not (self.pods and re.search(rf"\bsleep 100000$|'Names': '{POD}'", each))]


def _kill(host: LabHost, name: str, number: str = "KILL") -> None:
    host.wear()
    if pids := [str(one.pid) for one in host.processes() if name in one.cmdline]:
        host.run(["kill", f"-{number}", *pids], check=False)


def _stop(host: LabHost, name: str) -> Callable[[], object]:
    _kill(host, name, "STOP")
    return functools.partial(_kill, host, name, "CONT")


def tried(
    trial: Trial, lab: Lab, folder: Path, pace: Pace, pods: bool, undisturbed: Callable[[], Any] | None
) -> Verdict:
    """Run a training with its faults; ``undisturbed`` returns the outcome to compare with."""
    hosts, verdict = lab.hosts(HOSTS), Verdict(trial)
    with Slurm(lab, lab.hosts(HOSTS, fresh=True), gpus=1) if "slurmd" in trial.kind else nullcontext() as slurm:
        for host in hosts if "disk" in trial.kind else ():
            host.limit_disk("/tmp", 300 << 20)
        training = FaultyTraining(lab, folder, pace, hosts, trial.nodes, slurm, pods)
        training.start()
        begun = time.monotonic()
        try:
            verdict.hosts = training.disturb(trial)
            verdict.seconds = round(time.monotonic() - begun, 1)
            verdict.problems += training.judged(verdict, undisturbed)
        finally:
            with suppress(ProcessLookupError):
                training.going.process.kill()
            training.going.process.wait(60)
            for host in hosts:
                host.wear()
        if left := left_on(hosts, pace.lease_s + 45, training.leftovers):
            verdict.problems.append(f"left on the hosts: {left}")
        if slurm is not None:
            try:
                slurm.wait_until_idle()
            except AssertionError as error:
                verdict.problems.append(f"Slurm is not idle: {error}")
    return verdict


def reason_of(text: str) -> str:
    """Return the line that says why a training was not started again."""
    lines = text.splitlines()
    reasons = [line for line in lines if "not started again: " in line or "available: " in line]
    reasons += [line for line in lines if line.startswith("alpha:") and " failed: " in line][-1:]
    return reasons[0] if reasons else ""


def differences(
    outcome: Mapping[str, Any], undisturbed: Mapping[str, Any], tolerance: float, lost: Collection[str] = ()
) -> list[str]:
    """Return in what a finished training differs from the undisturbed one, though it must not.

    The curve may lack what a full disk did not take, and all of the starts whose log is ``lost``.
    """
    found = []
    gaps = [
        range(start["last_step"] + 1, after["from_step"] + 1)
        for start, after in pairwise(outcome["starts"])
        if start["kind"] == "disk" or start["folder"] in lost
    ]
    for name, keys in CURVES.items():
        curve, whole = ([{key: point[key] for key in keys} for point in one[name]] for one in (outcome, undisturbed))
        if curve != [point for point in whole if point in curve or not any(point["step"] in gap for gap in gaps)]:
            first = next((pair for pair in zip(curve, whole, strict=False) if pair[0] != pair[1]), None)
            found.append(f"other {name}: {len(curve)} instead of {len(whole)}, first {first}")
    own, expected = ({metric["name"]: metric["value"] for metric in one["metrics"]} for one in (outcome, undisturbed))
    found += [
        f"{name} is {own.get(name)} instead of {expected[name]}" for name in EXACT if own.get(name) != expected[name]
    ]
    kinds = [warning["kind"] for warning in outcome["validity_warnings"]]
    if outcome["starts"] and "restarted" not in kinds:
        found.append("it was started again, and its figures do not say so")
    warned = tuple(name for kind in kinds for name in WARNED.get(kind, ()))
    found += [
        f"{name} is {own.get(name)} instead of {value}, without a warning"
        for name, value in expected.items()
        if name.startswith(TIMES) and not name.startswith(warned)
        if not 1 / tolerance < own.get(name, math.nan) / value < tolerance
    ]
    return found


def run_all(trials: Sequence[Trial], at_once: int, pace: Pace, folder: Path, pods: bool = False) -> Iterator[Verdict]:
    """Run trials, several at once, each in a lab of its own; yield what came of them."""
    labs: queue.SimpleQueue[Lab] = queue.SimpleQueue()

    def run(trial: Trial, own: Path, undisturbed: Callable[[], Any] | None = None) -> Verdict:
        lab = labs.get()
        try:
            own.mkdir()
            return tried(trial, lab, own, pace, pods, undisturbed)
        except Exception as error:  # one of many: the others go on
            return Verdict(trial, result="broken", problems=[f"{type(error).__name__}: {error}"])
        finally:
            labs.put(lab)

    with ExitStack() as stack, ThreadPoolExecutor(at_once) as pool:
        for _ in range(at_once):
            labs.put(stack.enter_context(Lab()))
        plain = {nodes: folder / f"undisturbed{nodes}" for nodes in sorted({trial.nodes for trial in trials})}
        first = {nodes: pool.submit(run, Trial(0, nodes), own) for nodes, own in plain.items()}

        def undisturbed(nodes: int) -> Any:
            verdict = first[nodes].result()
            assert (verdict.result, verdict.problems) == ("finished", []), verdict
            (file,) = plain[nodes].glob("reports/run*/alpha*/round1/outcome.json")
            return json.loads(file.read_text())

        def run_one(trial: Trial) -> Verdict:
            return run(trial, folder / f"seed{trial.seed}", functools.partial(undisturbed, trial.nodes))

        yield from pool.map(run_one, trials)


def line_of(verdict: Verdict) -> str:
    trial = verdict.trial
    what = f"seed {trial.seed:3}  {trial.nodes}x1  step {trial.step:3}"
    for fault, host in zip(trial.faults, verdict.hosts, strict=False):
        lasts = "" if fault.lasts_s is None else f" for {fault.lasts_s:g} s"
        what += f"  +{fault.after_s:g} s {fault.kind}{lasts} on {host}"
    end = verdict.result + (f" after {verdict.starts} starts" if verdict.starts > 1 else "")
    problems = "".join(f"\n    WRONG: {problem}" for problem in verdict.problems)
    return f"{what}: {end}, {verdict.seconds:g} s  {verdict.reason}{problems}"


def table_of(verdicts: Sequence[Verdict]) -> str:
    ends = ["finished", "finished after restarts", "ended", "missed", "wrong"]
    counts: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        restarted = " after restarts" if verdict.result == "finished" and verdict.starts > 1 else ""
        end = "wrong" if verdict.problems else verdict.result + restarted
        counts.setdefault(verdict.trial.kind, Counter())[end] += 1
    rows = [[kind, *(str(count[end] or "") for end in ends)] for kind, count in counts.items()]
    return table(["fault", *ends], rows)


def seeds_of(words: Sequence[str]) -> list[int]:
    ranges = [word.partition("-") for word in words]
    return [seed for first, _, last in ranges for seed in range(int(first), int(last or first) + 1)]


def main() -> int:
    """Run the trainings of the given seeds and print what came of each, and a table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.random_faults", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("seeds", nargs="+", metavar="SEED", help="such as 7 or 1-100")
    parser.add_argument("--at-once", type=int, default=6, metavar="N", help="labs at once (default: 6)")
    parser.add_argument("--short", action="store_true", help="trainings of seconds")
    parser.add_argument("--folder", type=Path, help="keep the runs there (default: a temporary folder)")
    parser.add_argument("--faults", type=int, default=1, metavar="N", help="of each training (default: 1)")
    parser.add_argument("--reach", action="store_true", help="containers as hosts, which docker exec reaches")
    given = parser.parse_args()
    if problems := [*missing(), *([] if given.reach else missing_programs(SLURM))]:
        print("\n".join(["no lab on this machine:", *problems]))
        return 1
    folder = given.folder or Path(tempfile.mkdtemp(prefix="faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    verdicts = []
    pace = SHORT if given.short else FULL
    kinds = POD_KINDS if given.reach else KINDS
    trials = [Trial.drawn(seed, pace, given.faults, kinds) for seed in seeds_of(given.seeds)]
    for verdict in run_all(trials, given.at_once, pace, folder, given.reach):
        print(line_of(verdict), flush=True)
        verdicts.append(verdict)
    print(f"\n{table_of(verdicts)}\n\nThe runs are in {folder}.")
    missed = sum(verdict.result == "missed" for verdict in verdicts)
    # A few faults may come after the end of the training.
    return 1 if any(verdict.problems for verdict in verdicts) or missed > 0.05 * len(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
