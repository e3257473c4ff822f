"""The replays of runs that are judged by an accepted baseline: a case's two rounds each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.recording import BATCH, START_MS, Json, Sampling, Training, write, write_json

WAITED_S = 0.001
"""A step's wait for input, as recordings have it: p_core leaves it out."""
STEP_S = 0.02
P_CORE = BATCH / (STEP_S - WAITED_S)
P_TRAIN = BATCH / STEP_S
ROUNDS = (1.003, 0.997)
DRIVER = "570.1"
BASELINE = ("baseline p_core", "baseline p_train", "baseline p_whole")


@dataclass(frozen=True)
class Gated:
    """A run of so much speed, and what must fail of it: written by hand, never computed."""

    name: str
    speed: float
    failed: tuple[str, ...] = ()
    strict: tuple[str, ...] = ()
    """What fails besides, where warnings count as failures."""
    expecting: tuple[Json, ...] = ()
    """Tables [[expected]]."""
    excused: tuple[str, ...] = ()
    """The failures that were expected."""
    driver: str = DRIVER
    throttle: Callable[[int, float], str] = lambda device, share: "none"


def _expected(verdict: str, reason: str) -> Json:
    return {"case": "toy:*", "verdict": verdict, "reason": reason}


GATED = [
    Gated("within_bounds", 0.965),
    Gated("beyond_bounds", 0.88, failed=BASELINE),
    Gated("faster_than_accepted", 1.12),
    Gated("unlike_machine", 0.88, failed=("baseline",), driver="580.2"),
    Gated(
        "throttled", 0.99, strict=("valid",), throttle=lambda device, share: "hw_thermal" if share > 0.5 else "none"
    ),
    Gated(
        "expected_failure",
        0.88,
        failed=BASELINE,
        expecting=(_expected("baseline *", "the new compiler is slower here"),),
        excused=BASELINE,
    ),
    Gated(
        "expected_in_part",
        0.88,
        failed=BASELINE,
        expecting=(_expected("baseline p_core", "the new compiler is slower here"),),
        excused=("baseline p_core",),
    ),
    Gated(
        "expected_and_well",
        0.995,
        strict=("expected",),
        expecting=(_expected("baseline *", "the new compiler is slower here"),),
    ),
]  # fmt: skip


def write_baseline(folder: Path) -> None:
    write_json(folder / "toy_pytorch_CPU_1_1.json", _baseline())


def write_rounds(gated: Gated, run_dir: Path) -> list[Path]:
    """Write the run's two rounds and return their folders."""
    trainings = [
        _training(gated, gated.speed * share, number, START_MS + number * 60_000)
        for number, share in enumerate(ROUNDS, 1)
    ]
    case_dir = run_dir / trainings[0].case.replace(":", "_")
    return [write(training, case_dir / f"round{training.round}") for training in trainings]


def _training(gated: Gated, speed: float, number: int, started_ms: int) -> Training:
    """Short, and without an evaluation."""
    report: dict[str, Any] = {"host": {"kernel": "6.1.0"}, "driver": gated.driver, "devices": []}
    return Training(
        gated.name,
        steps=20,
        eval_every=1000,
        throughput_only=True,
        rounds=len(ROUNDS),
        round=number,
        started_ms=started_ms,
        step_s=(STEP_S - WAITED_S) / speed + WAITED_S,
        sampling=Sampling(devices=1, every_s=0.2, report=report, throttle=gated.throttle),
    )


def _baseline() -> Json:
    figures = {"p_core": P_CORE, "p_train": P_TRAIN, "p_whole": P_TRAIN}
    return {
        "schema": 1,
        "case": "toy:pytorch:CPU:1:1",
        "metrics": {
            name: {
                "value": float(f"{value:.6g}"), "lower": -0.05, "upper": 0.05, "unit": "images/s",
                "direction": "higher", "rounds": 2,
            }
            for name, value in figures.items()
        },
        "accepted": {"run": "run20261101000000", "when": "2026-11-01T00:00:00Z", "note": "the first one"},
        "throughput_only": True,
        "fingerprint": {"key": "key-1", "one_card_key": "key-1"},
        "machine": {"driver": DRIVER, "kernel": "6.1.0"},
    }  # fmt: skip
