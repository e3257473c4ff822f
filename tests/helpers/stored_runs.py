"""Run directories as runs leave them, made of replays."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from flagperf_driver.layout import MONITORS
from pytest_flagperf.kinds.training import verdicts as training_verdicts
from pytest_flagperf.results.measured import machine
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.store import RunInfo
from pytest_flagperf.stored import files, layout
from pytest_flagperf.stored.round_dir import RoundDir
from tests.helpers.recording import LOCALHOST, PCI, Training, write
from tests.helpers.results_help import edit_json, replay_dir, with_metric

INFO = RunInfo(("pytest", "suites"), {"pytest-flagperf": "0.1.0"}, 1_700_000_000_000, 1_700_000_100_000, 0)
Change = Callable[[Outcome], Outcome]


def faster(*factors: float) -> list[Change]:
    """A round for each factor, with its throughputs that many times what was recorded."""

    def change(factor: float) -> Change:
        def changed(outcome: Outcome) -> Outcome:
            for name in ("p_whole", "p_train", "p_core"):
                if (value := outcome.value(name)) is not None:
                    outcome = with_metric(outcome, name, value * factor)
            return outcome

        return changed

    return [change(factor) for factor in factors]


def add_case(run_dir: Path, replay: str, rounds: list[Change] | None = None, **plan: Any) -> Path:
    """A case of rounds that are all this replay; what is given of the plan stands in it instead of the replay's."""
    fields = {**json.loads((replay_dir(replay) / "plan.json").read_text(encoding="utf-8")), **plan}
    names = ("model", "framework", "hardware", "nnodes", "nproc")
    case = ":".join(str(fields[name]) for name in names) + f":{len(rounds or [None])}"
    case_dir = run_dir / case.replace(":", "_")
    outcomes = []
    for number, change in enumerate(rounds or faster(1.0), 1):
        round_dir = case_dir / f"round{number}"
        shutil.copytree(replay_dir(replay), round_dir)
        edit_json(round_dir / "plan.json", **plan, case=case, round=number, seed=41 + number)
        # No devices were recorded: the chip counts as verified, unless a change says otherwise.
        with mock.patch.object(machine, "unverified_chip", return_value=""):
            outcomes.append(change(measure(round_dir)))
        store.save_outcome(round_dir, outcomes[-1])
        if not outcomes[-1].throughput_only:
            store.save_verdicts(
                case_dir, f"test_converges[{case}-round{number}]", training_verdicts.converges(outcomes[-1])
            )
    store.save_verdicts(case_dir, f"test_throughput[{case}]", training_verdicts.throughput(outcomes))
    return case_dir


def finish(run_dir: Path, info: RunInfo = INFO) -> Path:
    for name in (layout.RESULTS, layout.SUMS):  # as a run that is resumed
        (run_dir / name).unlink(missing_ok=True)
    store.write_run(run_dir, info, store.load_run(run_dir).cases)
    return run_dir


def run_of(run_dir: Path, replay: str = "converged_1x1", rounds: list[Change] | None = None, **plan: Any) -> Path:
    add_case(run_dir, replay, rounds, **plan)
    return finish(run_dir)


def dated(day: int, *factors: float) -> list[Change]:
    """Rounds of a day: what the same rounds did at another time is a copy."""
    return [
        lambda one, change=change, number=number: replace(change(one), started_ms=1000 * day + number)  # type: ignore[misc]
        for number, change in enumerate(faster(*factors))
    ]


def history(folder: Path) -> list[Path]:
    """Sixteen runs, each of another commit; the last six are 20 % slower."""
    runs = []
    for number in range(16):
        factor = (0.8 if number >= 10 else 1.0) * (1 + 0.01 * (-1) ** number)
        rounds: list[Change] = [
            lambda one, change=change, number=number: replace(change(one), machine={"commit": f"{number:040}"})  # type: ignore[misc]
            for change in dated(number + 1, factor)
        ]
        runs.append(run_of(folder / f"run202611{number + 1:02}", rounds=rounds, fingerprint={"key": "k"}))
    return runs


def submission(root: Path, of_shape: Mapping[str, Mapping[str, Any]] | None = None) -> list[Path]:
    """Runs of 1x1, 1x8 and 2x8 at the reference scale, all well; ``of_shape``: where a shape's training differs."""
    return [_submitted(root, nnodes, nproc, of_shape or {}) for nnodes, nproc in ((1, 1), (1, 8), (2, 8))]


def _submitted(root: Path, nnodes: int, nproc: int, of_shape: Mapping[str, Mapping[str, Any]]) -> Path:
    shape, cards = f"{nnodes}x{nproc}", nnodes * nproc
    differences = dict(of_shape.get(shape, {}))
    same = {"suite_code": "s1", "driver_code": "d1", "precision": "fp32"}
    fingerprint = {**same, "nnodes": nnodes, "nproc": nproc, "key": f"key-{cards}", "one_card_key": "key-1"}
    training = Training(
        shape,
        nnodes=nnodes,
        nproc=nproc,
        throughput_only=nnodes > 1,
        hosts=tuple({**LOCALHOST, "name": f"h{number}"} for number in range(nnodes)),
        hardware="X9",
        vendor="acme",
        scale="reference",
        device="X9",
        plan_fields={
            "device": "acme",
            "chip_pci": [PCI],
            "fingerprint": fingerprint,
            **differences.pop("plan_fields", {}),
        },
    )
    return trained(root / f"run-{shape}", replace(training, **differences))


def trained(run_dir: Path, *rounds: Training) -> Path:
    """A finished run of one case, whose figures follow from its logs."""
    case_dir = run_dir / rounds[0].case.replace(":", "_")
    outcomes = store_rounds(case_dir, *rounds)
    store.save_verdicts(case_dir, f"test_throughput[{rounds[0].case}]", training_verdicts.throughput(outcomes))
    return finish(run_dir)


def store_rounds(case_dir: Path, *rounds: Training) -> list[Outcome]:
    """Write and measure rounds, and judge their convergence."""
    outcomes = []
    for training in rounds:
        round_dir = write(training, case_dir / f"round{training.round}")
        for host in RoundDir(round_dir).read_plan().hosts if training.device == training.hardware else ():
            devices = [{"index": index, "name": training.hardware} for index in host.devices]
            kernel = {"accelerators": f"{len(devices)} x {PCI}"}
            files.write(round_dir / host.folder / MONITORS, {"devices": devices, "host": kernel})
        outcomes.append(measure(round_dir))
        store.save_outcome(round_dir, outcomes[-1])
        if not training.throughput_only:
            test = f"test_converges[{training.case}-round{training.round}]"
            store.save_verdicts(case_dir, test, training_verdicts.converges(outcomes[-1]))
    return outcomes
