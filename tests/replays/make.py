"""The replays: small round directories, good and bad, as a round leaves them, and the verdicts that must fail of each.

Tests write them when they need them. Two are committed in ``golden``, so that a change of a file's format shows as a
diff: ``python -m tests.replays.make`` writes these two again.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagperf_driver import events
from tests.helpers.recording import BATCH, CONFIG, START_MS, Entry, Json, Sampling, Training, write

GOLDEN = Path(__file__).resolve().parent / "golden"


@dataclass(frozen=True)
class Replay(Training):
    """A recording and its expected verdicts, which are written by hand and never computed."""

    unconverged: tuple[str, ...] = ()
    """The verdicts of ``converges`` that must fail."""
    unsound: tuple[str, ...] = ()
    """The same of ``throughput``."""
    validity_warnings: tuple[str, ...] = ()
    """The kinds of its validity warnings."""


def sampled(*events: Json, **more: Any) -> Sampling:
    """A device or two, twice a second, and what the sampler says."""
    means = {"cpu": "/proc/stat", "memory": "/proc/meminfo", "devices": "NVML"}
    facts = [{"index": 0, "name": "X9", "uuid": "GPU-0", "power_limit": 700.0, "usual_power_limit": 700.0}]
    report = {
        "means": means, "host": {"kernel": "6.1.0"}, "driver": "570.1", "devices": facts, "missing": [],
        "events": [*events], "errors": [],
    }  # fmt: skip
    return Sampling(**{"devices": 1, "every_s": 0.5, "report": report, **more})


def readings(host: dict[str, list[float]], device: dict[str, list[float]]) -> Sampling:
    """A device's and the host's samples with other readings of these columns, one a row, while it trains."""

    def edit(name: str, rows: list[str]) -> list[str]:
        columns = [column.partition(" [")[0] for column in rows[0].split(",")]
        cells = [row.split(",") for row in rows]
        for column, values in (host if name == "host" else device).items():
            for number, value in enumerate(values, 10):
                cells[number][columns.index(column)] = f"{value:g}"
        return [",".join(row) for row in cells]

    return sampled(edit=edit)


OF_HOST = ("cpu", "memory", "net_rx", "net_tx", "rdma_rx", "rdma_tx", "disk_read", "disk_write")


def until(step: int, *extra: Entry) -> Callable[[list[Entry]], list[Entry]]:
    """The events before this step's, and others after them."""

    def cut(found: list[Entry]) -> list[Entry]:
        kept: list[Entry] = []
        for entry in found:
            if entry[2].get("step", 0) >= step or entry[1] in (events.TRAIN_END, events.FINISHED):
                break
            kept.append(entry)
        return [*kept, *extra]

    return cut


def only(rank: int, change: Callable[[list[Any]], list[Any]]) -> Callable[[int, list[Any]], list[Any]]:
    return lambda this, found: change(found) if this == rank else found


def every(change: Callable[[list[Any]], list[Any]]) -> Callable[[int, list[Any]], list[Any]]:
    return lambda this, found: change(found)


def mangled(found: list[str]) -> list[str]:
    """What a full disk, two writers and a chatty library do to a log."""
    third = next(i for i, line in enumerate(found) if '"step": 30' in line)
    merged = found[third][:60] + found[third + 1]
    noise = ['[PerfLog] {"event": "STEP_END", "value": {"step": 9', "\x00\x01 not text \udcff", "[PerfLog] null"]
    head, rest = found[:third], found[third + 2 :]
    prefixed = [f"[rank0]: {line}" if '"step": 60' in line else line for line in rest]
    return [*head, merged, *noise, "progress 50%\rprogress 60%", *prefixed]


STOPPED = {"code": None, "signal": "SIGTERM", "cause": "stopped"}
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "run_pretraining.py", line 3, in <module>',
    "    import something_missing",
    "ModuleNotFoundError: No module named 'something_missing'",
]
RAISED = (2.6, events.FAILED, dict(zip(("type", "error"), TRACEBACK[-1].split(": "), strict=True)))


def _fault(kind: str, rank: int, sentence: str, last_lines: Iterable[str] = ()) -> Json:
    return {"kind": kind, "host": "localhost", "rank": rank, "sentence": sentence, "last_lines": list(last_lines)}


def usual_loss(step: int) -> float:
    return 2.3 * math.exp(-step / 80) + 0.1


def reference() -> Json:
    """Of five rounds like ``converged_1x1``, as ``tools.calibrate`` writes it."""
    steps = range(10, 201, 10)
    places = [float(step * BATCH) for step in steps]
    rounds = [[round(usual_loss(step) * (1 + 0.003 * off), 5) for step in steps] for off in (-2, -1, 0, 1, 2)]
    ways = [[0.1, *(round(0.93 * (1 - math.exp(-step / 40)), 4) for step in range(50, 201, 50))]] * 5
    batch = {
        "global_batch": BATCH, "shapes": ["1x1"], "seeds": [1, 2, 3, 4, 5], "runs": ["run1"],
        "to_target": [4400.0, 4560.0, 4700.0, 4500.0, 4630.0], "interval": 320.0,
        "metric": {"samples": [0.0, 1600.0, 3200.0, 4800.0, 6400.0], "rounds": ways},
        "loss": {"samples": places, "rounds": rounds},
    }  # fmt: skip
    target = {"name": "top1", "direction": "higher", "unit": "fraction", "value": 0.9}
    of = {"model": "toy", "framework": "pytorch", "scale": "small", "sample_unit": "images", "target": target}
    return {"schema": 1, "of": {**of, "batches": [batch]}}


def parity(name: str, loss_at: Callable[[int], float]) -> Replay:
    """Half of a training, judged by its loss curve."""
    return Replay(
        name,
        steps=100,
        loss_at=loss_at,
        converged=False,
        reason="parity",
        plan_fields={"reference": reference(), "config": {**CONFIG, "parity_samples": 100 * BATCH}},
    )


def mixture(name: str, load: float | None, unconverged: tuple[str, ...] = ()) -> Replay:
    """A mixture of experts, with this load of the most used expert at the end, and a higher one before."""
    figures = {"expert_load": load, "expert_entropy": load and 0.8}

    def logged(found: list[Entry]) -> list[Entry]:
        return [
            (at, kind, {**value, **figures, "expert_load": load and load + 1 / value["step"] - 1 / 200})
            if kind == events.STEP_END
            else (at, kind, value)
            for at, kind, value in found
        ]

    return Replay(
        name,
        unconverged=unconverged,
        edit=every(logged),
        finished=lambda value: {**value, **figures},
        plan_fields={"config": {**CONFIG, "max_expert_load": 3.0}},
    )


DEVIATIONS = {
    "step backward": ["acme's own", "the suite's own"],
    "hook events": ["acme's own", "the framework's own"],
    "module torch_acme": ["imported by each rank", "none"],
}


def with_vendor_code(name: str, steps: list[str], hooks: list[str], validity_warnings: int = 0, **more: Any) -> Replay:
    """A vendor's own step, hook and module in the plan; ``steps`` and ``hooks`` are what the last rank reports."""

    def report(rank: int, found: list[Entry]) -> list[Entry]:
        own = {"replaced": ["backward"], "replaced_hooks": ["events"]}
        if rank == more.get("nproc", 1) - 1:
            own = {"replaced": steps, "replaced_hooks": hooks}
        return [(at, event, {**value, **own} if event == events.INIT_END else value) for at, event, value in found]

    fields = {"vendor": "acme", "fingerprint": {"key": "key-1", "one_card_key": "key-1", "deviations": DEVIATIONS}}
    return Replay(name, edit=report, plan_fields=fields, validity_warnings=("vendor_code",) * validity_warnings, **more)


def unfinished(name: str, state: str = "failed", **more: Any) -> Replay:
    """A round that did not end well."""
    return Replay(name, unconverged=("finished",), unsound=("finished",), state=state, **more)


REPLAYS = [
    Replay("converged_1x1"),
    Replay("converged_1x2", nproc=2),
    Replay("missed_target", unconverged=("target",), last=0.88),
    Replay(
        "nan_loss",
        unconverged=("loss_finite",),
        loss_at=lambda step: math.nan if step >= 120 else 2.3 * math.exp(-step / 80),
        finished=lambda value: {**value, "final_loss": math.nan},
    ),
    Replay("nan_metric", unconverged=("target",), last=math.nan),
    unfinished(
        "missing_finished",
        nproc=2,
        fault=_fault("unfinished", 1, "rank 1 ended without a FINISHED line"),
        edit=only(1, lambda found: [entry for entry in found if entry[1] != events.FINISHED]),
        text=only(1, lambda found: [*found, "terminate called without an active exception"]),
    ),
    unfinished(
        "crashed_rank",
        nproc=2,
        fault=_fault("crash", 1, "rank 1 ended with exit code 1", TRACEBACK),
        exits=(STOPPED, {"code": 1, "signal": None, "cause": "crash"}),
        edit=lambda rank, found: [found[0], RAISED] if rank == 1 else found[:2],
        text=only(1, lambda found: [*found, *TRACEBACK]),
    ),
    unfinished(
        "killed_rank",
        nproc=2,
        fault=_fault("crash", 1, "rank 1 was killed by SIGKILL (out of memory, or somebody's kill -9)"),
        exits=(STOPPED, {"code": None, "signal": "SIGKILL", "cause": "crash"}),
        edit=every(until(80)),
    ),
    unfinished(
        "hang",
        nproc=2,
        fault=_fault("hang", 0, "rank 0 made no progress for 300 s at step 70: it hangs"),
        exits=({"code": None, "signal": "SIGKILL", "cause": "hang"}, STOPPED),
        edit=every(until(80)),
    ),
    Replay("synthetic", unconverged=("real_data",), synthetic=True),
    Replay("throughput_only", unconverged=("real_data", "target"), throughput_only=True, steps=55, target=0.9),
    Replay("mangled_log", text=every(mangled)),
    Replay("claims_too_much", unconverged=("target", "agrees"), last=0.88, converged=True),
    Replay(
        "too_few_steps", unconverged=("real_data", "target"), unsound=("measured_steps",), steps=10,
        throughput_only=True,
    ),
    Replay(
        "did_not_learn",
        unconverged=("learned", "target"),
        last=0.1,
        accuracy_at=lambda step: 0.1,
        loss_at=lambda step: 2.3 + 0.01 * math.sin(step),
        plan_fields={"config": {**CONFIG, "learning_rate": 0.0}},
    ),
    Replay("as_the_reference", eval_every=30, plan_fields={"reference": reference()}),
    parity("parity", lambda step: usual_loss(step) * 1.002),
    mixture("experts", 1.6),
    mixture("collapsed_router", 3.9, ("experts",)),
    mixture("no_expert_load", None, ("experts",)),
    unfinished(
        "no_log",
        fault=_fault("crash", 0, "rank 0 ended with exit code 127"),
        exits=({"code": 127, "signal": None, "cause": "crash"},),
        text=every(lambda found: []),
    ),
    Replay(
        "throttled",
        nproc=2,
        sampling=sampled(
            devices=2,
            throttle=lambda device, share: "hw_thermal" if device == 0 and share > 0.5 else "none",
            clock=lambda device, share: 1200 if device == 0 and share > 0.5 else 1980,
        ),
        validity_warnings=("throttled",),
    ),
    # What a chip does at its usual power limit, or while nothing is asked of it, is no throttling.
    Replay(
        "at_its_power_limit", sampling=sampled(throttle=lambda device, share: "sw_power_cap" if share > 0.4 else "idle")
    ),
    Replay(
        "foreign_process",
        sampling=sampled({
            "time": START_MS / 1000 + 6, "device": 0, "kind": "foreign",
            "sentence": "process 4242 (python, user eve) computed on device 0",
        }),
        validity_warnings=("foreign",),
    ),
    with_vendor_code("vendor_code", ["backward"], ["events"]),
    with_vendor_code("vendor_code_not_reported", ["backward"], [], validity_warnings=1, nproc=2),
    with_vendor_code("vendor_code_not_planned", ["backward", "create_optimizer"], ["events"], validity_warnings=1),
    # What four drivers really reported, and more than each quantity can be. The board's limit is 700 W.
    Replay(
        "impossible_readings",
        sampling=readings(
            {**{name: [-1, 2e13] for name in OF_HOST}, "power": [-23.5, 3e5], "energy": [-256.6, 2e12]},
            {
                "temperature": [-51, 4000],
                "power": [-23.5, 1401],
                "memory_used": [-512, 143_772],
                "memory_total": [-1, 2e7],
                "utilization": [-1, 3700],
                "sm_clock": [-1, 1e5],
                "memory_clock": [-1, 1e5],
                "energy": [-256.6, 2e12],
            },
        ),
    ),
    Replay(
        "impossible_accuracy",
        accuracy_at=lambda step: 2.5 if step == 200 else 0.1,
        unconverged=("in_range",),
        unsound=("in_range",),
    ),
    Replay("p_core_missing", unsound=("p_core",), finished=lambda value: {**value, "p_core": None}),
    unfinished("interrupted", state="interrupted", exits=(STOPPED,), edit=every(until(80))),
]  # fmt: skip


BY_NAME = {replay.name: replay for replay in REPLAYS}


if __name__ == "__main__":
    for folder in GOLDEN.iterdir():
        write(BY_NAME[folder.name], folder)
