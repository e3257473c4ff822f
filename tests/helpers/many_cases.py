"""A run of many cases, as a fleet of several models and machines leaves it: some well, some not."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flagperf_driver import defaults
from pytest_flagperf.kinds.training import verdicts as training_verdicts
from pytest_flagperf.results import verdicts
from pytest_flagperf.results.comparing.baselines import Accepted, Baseline, Figure, judge
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.store import RunInfo
from pytest_flagperf.results.verdicts import OneCard, Verdict
from tests.helpers.recording import BATCH, PCI, Sampling, Training
from tests.helpers.stored_runs import finish, store_rounds

START_MS = 1_795_200_000_000
MODELS = {
    "bert": ("sequences", "mlm_accuracy", 0.71),
    "glm": ("sequences", "accuracy", 0.80),
    "resnet50": ("images", "top1", 0.749),
    "a_model_with_a_long_name": ("tokens", "a_metric_with_a_long_name", 0.66),
}
"""Their samples, metric and target."""
CHIPS = {
    "A100": ("acme", 312.0, 400.0, 1410),
    "H200": ("acme", 989.5, 700.0, 1980),
    "MX300": ("borealis", 480.0, 350.0, 1500),
    "K9-LongName": ("borealis", 250.0, 300.0, 1300),
}
"""Their vendor, peak, power and clock."""
SHAPES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8))
STEP_S = 0.2
FATES = (
    "well", "well", "killed", "well", "missed", "well", "throttled", "slow", "expected", "nan", "regressed", "better",
    "throughput only",
)  # fmt: skip
"""What becomes of a case; in a run of a dozen each shows up once or is near."""


@dataclass(frozen=True)
class PlannedCase:
    number: int
    model: str
    chip: str
    nnodes: int
    nproc: int
    rounds: int
    fate: str

    @property
    def case(self) -> str:
        return f"{self.model}:pytorch:{self.chip}:{self.nnodes}:{self.nproc}:{self.rounds}"


def planned_cases(cases: int) -> Iterator[PlannedCase]:
    """Different ones as long as there are any: then other models."""
    for number in range(cases):
        rest, shape = divmod(number, len(SHAPES))
        rest, chip = divmod(rest, len(CHIPS))
        again, model = divmod(rest, len(MODELS))
        name = list(MODELS)[model] + (f"_{again + 1}" if again else "")
        fate = FATES[number * 8 % len(FATES)] if cases > 1 else "well"
        yield PlannedCase(number, name, list(CHIPS)[chip], *SHAPES[shape], (3, 1, 2, 5)[number % 4], fate)


def make(run_dir: Path, cases: int, log_factor: int = 1) -> Path:
    """``log_factor``: how many times as long logs and series are, of rounds that take as many times as long."""
    one_card: dict[tuple[str, str], float] = {}
    for case in planned_cases(cases):
        case_dir = run_dir / case.case.replace(":", "_")
        rounds = (training(case, number, log_factor) for number in range(1, case.rounds + 1))
        outcomes = store_rounds(case_dir, *rounds)
        _judge(case, case_dir, outcomes, one_card)
    command = ("pytest", "suites", "--nodes=1x1,1x2,1x4,1x8,2x8")
    info = RunInfo(command, {"pytest-flagperf": "0.1.0"}, START_MS, START_MS + 8_000_000, 1)
    return finish(run_dir, info)


def _judge(
    case: PlannedCase, case_dir: Path, outcomes: Sequence[Outcome], one_card: dict[tuple[str, str], float]
) -> None:
    found = [*training_verdicts.throughput(outcomes), *(verdicts.valid(outcome, strict=False) for outcome in outcomes)]
    store.save_verdicts(case_dir, f"test_throughput[{case.case}]", [*found, *_against_baseline(case, outcomes)])
    p_core = outcomes[0].value("p_core")
    machine = (case.model, case.chip)
    if case.nnodes * case.nproc == 1 and p_core:
        one_card[machine] = p_core
    elif machine in one_card:
        card = OneCard(one_card[machine], "this run", outcomes[0].rate_unit)
        store.save_one_card(case_dir, card)
        found = verdicts.speedup(outcomes, card, outcomes[0].cards, 0.8, "weak")
        why = "its cards share one link until the next board" if case.fate == "expected" else None
        found = [one if one.ok else replace(one, expected_failure=why) for one in found]
        store.save_verdicts(case_dir, f"test_speedup[{case.case}]", found)


def _against_baseline(case: PlannedCase, outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Every other case has one; of some it was better than what is measured now, or worse."""
    p_core = outcomes[0].value("p_core")
    if p_core is None or (case.number % 2 and case.fate not in ("regressed", "better")):
        return []
    accepted = p_core * {"regressed": 1.12, "better": 0.85}.get(case.fate, 1.004)
    figure = Figure(accepted, -0.05, 0.05, outcomes[0].rate_unit, "higher", 3)
    baseline = Baseline(case.case.rpartition(":")[0], {"p_core": figure}, Accepted("run20261101000000", "2026-11-01"))
    first = outcomes[0]
    same = {name: getattr(first, name) for name in ("fingerprint", "machine", "throughput_only")}
    return judge(outcomes, replace(baseline, **same))


def training(case: PlannedCase, number: int, log_factor: int = 1) -> Training:
    """One round; which one it is decides about its noise."""
    unit, metric, target = MODELS[re.sub(r"_[0-9]+$", "", case.model)]
    vendor, peak, watts, clock = CHIPS[case.chip]
    steps = 600 * log_factor
    cards = case.nnodes * case.nproc
    noise = math.sin(12.9 * case.number + 78.2 * number)
    slow = 1.35 if case.fate in ("slow", "expected") else 1.0
    step_s = STEP_S * slow * (1 + 0.02 * noise) * (1 + 0.03 * math.log2(cards))
    last = target * (0.97 if case.fate == "missed" else 1.03 + 0.005 * noise)

    def wave(step: int) -> float:
        return math.sin(step * 1.7 + number) * 0.6 + math.sin(step * 0.37 + case.number) * 0.4

    def loss(step: int) -> float:
        if case.fate == "nan" and step > steps // 2:
            return math.nan
        return (6.5 + 0.2 * wave(step)) * math.exp(-3 * step / steps) + 1.2 + 0.05 * wave(step * 3)

    hot = case.fate == "throttled"
    sampling = Sampling(
        devices=case.nproc,
        watts=watts * 0.9,
        memory_mib=81_920,
        throttle=lambda device, share: "hw_thermal" if hot and device < 2 and share > 0.5 else "none",
        clock=lambda device, share: clock - (400 if hot and device < 2 and share > 0.5 else 0),
        report=_report(case),
    )
    found = Training(
        case.case,
        device=f"{vendor} {case.chip} 80 GB", precision="bf16",
        model=case.model, metric=metric, sample_unit=unit, vendor=vendor, hardware=case.chip,
        nnodes=case.nnodes, nproc=case.nproc, round=number, rounds=case.rounds, scale="reference",
        target=target, last=last,
        started_ms=START_MS + 1000 * (case.number * 400 + number * 130),
        steps=steps, step_s=step_s, eval_s=3.0, init_s=12.0, log_every=10, eval_every=steps // 12,
        accuracy_at=lambda step: last * (1 - math.exp(-6 * step / steps)) + 0.003 * wave(step),
        loss_at=loss, speed_at=lambda step: 1 + 0.03 * wave(step),
        hosts=tuple({"name": f"node{host}.cluster", "address": f"10.0.0.{host}"} for host in range(1, case.nnodes + 1)),
        sampling=sampling,
        throughput_only=case.fate == "throughput only",
        plan_fields=_plan_fields(case, peak),
    )  # fmt: skip
    return _killed(found) if case.fate == "killed" and number == case.rounds else found


def _killed(training: Training) -> Training:
    """Its last rank falls to somebody's kill in the middle."""
    last, half = training.cards - 1, training.seconds / 2
    fault = {
        "kind": "crash", "host": training.hosts[-1]["name"], "rank": last, "last_lines": [],
        "sentence": f"rank {last} was killed by SIGKILL (out of memory, or somebody's kill -9)",
    }  # fmt: skip
    stopped = {"code": None, "signal": "SIGTERM", "cause": "stopped"}
    return replace(
        training,
        state="failed",
        fault=fault,
        exits=(*[stopped] * last, {"code": None, "signal": "SIGKILL", "cause": "crash"}),
        edit=lambda rank, entries: [entry for entry in entries if entry[0] < half],
    )


def _plan_fields(case: PlannedCase, peak: float) -> dict[str, Any]:
    config = {
        name: value for name, value in vars(defaults).items()
        if not name.startswith("_") and isinstance(value, str | int | float | None)
    }  # fmt: skip
    config |= {"train_batch_size": 32, "learning_rate": 4e-4, "precision": "bf16"}
    values = {
        name: {"value": value, "file": "flagperf_driver/defaults.py", "line": 20 + line, "layer": "defaults"}
        for line, (name, value) in enumerate(config.items())
    }
    file = f"vendors/{CHIPS[case.chip][0]}/{case.model}-pytorch/config/config_{case.chip}x{case.nnodes}x{case.nproc}.py"
    values["train_batch_size"] = {"value": 32, "file": file, "line": 1, "layer": "vendor"}
    return {
        "checkout": {"commit": "3ff676b2ffc178efb6ad3d1ed938ea0d06730ed5", "changed": False},
        "interpreter": {"image": "registry.example/flagperf-pytorch:2.9", "python": "3.11.7"},
        "device": "cuda", "chip_pci": [PCI], "backend": "nccl", "config": config, "values": values,
        "deviations": [{"key": "train_batch_size", "value": 32, "reference": 64, "file": file, "line": 1}],
        "flops_per_sample": 0.45 * peak * 1e12 * STEP_S / BATCH, "peak_tflops": peak, "min_efficiency": 0.8,
        "fingerprint": {
            "key": f"{case.model}-{case.chip}-{case.nnodes}x{case.nproc}",
            "one_card_key": f"{case.model}-{case.chip}-1x1",
        },
    }  # fmt: skip


def _report(case: PlannedCase) -> dict[str, Any]:
    vendor, _, watts, _ = CHIPS[case.chip]
    device = {"name": f"{vendor} {case.chip}", "memory_total": 81_920, "power_limit": watts, "links": 12}
    return {
        "driver": "575.51.03",
        "host": {
            "cpu": "Example Server CPU 9654", "sockets": "2", "cores": "192", "memory_bytes": str(2**40),
            "kernel": "6.8.0-60-generic", "os": "Debian GNU/Linux 12 (bookworm)",
            "accelerators": f"{case.nproc} x {PCI}",
        },
        "devices": [device] * case.nproc,
        "means": {"cpu": "/proc/stat", "memory": "/proc/meminfo", "devices": "the vendor's library"},
        "errors": [], "events": [],
        "missing": ["power: no interface of the host's gives it"],
    }  # fmt: skip
