"""The columns of results.csv: one row for each round of each case."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flagperf_driver.logged_step import STEP_FIGURES
from pytest_flagperf.results.measured.outcome import SCHEMA, Outcome
from pytest_flagperf.results.verdicts import has_converged
from pytest_flagperf.stored import write_text

FIGURES = (
    ("e2e_time", "s"), ("init_time", "s"), ("raw_train_time", "s"), ("train_no_eval_time", "s"),
    ("pure_training_computing_time", "s"), ("eval_time", "s"), ("compile_time", "s"), ("time_to_target", "s"),
    ("samples_to_target", ""), ("p_whole", ""), ("p_train", ""), ("p_core", ""),
    ("step_time_mean", "s"), ("step_time_p50", "s"), ("step_time_p90", "s"), ("step_time_p99", "s"),
    ("input_wait_share", ""), ("mfu", ""), ("padding_share", ""), ("peak_memory", "bytes"), ("final_loss", ""),
)  # fmt: skip
"""The metrics of every suite as columns of results.csv, with the unit in the column's name."""
MEANWHILE = (
    ("straggler_spread", ""), ("device_power", "W"), ("device_power_highest", "W"), ("device_temperature", "C"),
    ("device_temperature_highest", "C"), ("device_utilization", ""), ("device_memory", "bytes"),
    ("device_memory_mean", "bytes"), ("device_memory_total", "bytes"), ("device_throttled", ""), ("device_energy", "J"),
    ("device_energy_covered", ""), ("device_energy_per_sample", "J"), ("host_cpu", ""), ("host_memory", ""),
    ("host_power", "W"), ("host_energy", "J"), ("host_energy_covered", ""), ("host_energy_per_sample", "J"),
    ("monitor_gaps", "s"), ("device_sm_clock", "MHz"), ("device_memory_clock", "MHz"), ("core_wait", ""),
    ("other_cores", ""), ("core_stolen", ""),
)  # fmt: skip
"""Metrics of ranks, devices and hosts during the training, with the unit in the column's name."""
LATER: tuple[tuple[str, str], ...] = (
    ("vendor_factor", ""), ("save_pause", "s"), ("save_write_time", "s"), ("expert_load", ""), ("expert_entropy", ""),
    ("restarts", ""), ("steps_repeated", ""), ("wall_time", "s"), ("lost_time", "s"), ("goodput", ""),
    ("energy_to_target", "J"), ("carbon_to_target", "g"), ("cost_to_target", ""), ("cost_per_million", ""),
)  # fmt: skip
"""Metrics that were added after the other columns, and then all further figures of a step."""
LATER += tuple(
    (name, "" if one.unit in ("x", "share") else one.unit)
    for name, one in STEP_FIGURES.items()
    if name not in dict(LATER)
)
COLUMNS = (
    "schema", "run", "case", "model", "framework", "vendor", "hardware", "nnodes", "nproc", "cards", "round",
    "seed", "scale", "precision", "synthetic", "throughput_only", "state", "ok", "converged", "failure",
    "stop_reason", "samples", "steps", "epochs", "batch_per_card", "accumulation", "measured_steps",
    "warmup_steps", "metric", "metric_value", "metric_unit", "metric_direction", "target", "sample_unit",
    *(f"{name}_{unit}" if unit else name for name, unit in FIGURES),
    "device", "framework_version", "started_ms", "ended_ms", "fingerprint",
    *(f"{name}_{unit}" if unit else name for name, unit in MEANWHILE),
    "vendor_code",
    *(f"{name}_{unit}" if unit else name for name, unit in LATER),
)  # fmt: skip
"""The columns of results.csv in order; new columns are added at the end."""
_FORMULA = ("=", "+", "-", "@")
"""First characters of a text that a spreadsheet would evaluate as a formula."""


def write_csv(path: Path, runs: Iterable[tuple[str, Iterable[Outcome]]]) -> None:
    """Write one row for each round of the named runs; the last columns are the figures of measurements."""
    rows = [(row(run, outcome), measured(outcome)) for run, outcomes in runs for outcome in outcomes]
    further = sorted({name for _, figures in rows for name in figures})
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*COLUMNS, *further], lineterminator="\n")
    writer.writeheader()
    for values, figures in rows:
        writer.writerow({name: _cell(value) for name, value in {**values, **figures}.items()})
    write_text(path, stream.getvalue())


def row(run: str, outcome: Outcome) -> dict[str, Any]:
    """Return the values of a round by the names of the columns."""
    values: dict[str, Any] = {name: getattr(outcome, name, None) for name in COLUMNS}
    values.update({name: getattr(outcome.work, name) for name in COLUMNS if hasattr(outcome.work, name)})
    values.update(
        schema=SCHEMA,
        run=run,
        precision=outcome.environment.get("precision"),
        converged=has_converged(outcome) if outcome.meant_to_converge else None,
        failure=outcome.failures[0].sentence if outcome.failures else None,
        metric=outcome.target.name,
        metric_value=outcome.value(outcome.main) if outcome.figures else outcome.quality.last,
        metric_unit=outcome.target.unit,
        metric_direction=outcome.target.direction,
        target=outcome.target.value,
        device=outcome.environment.get("device"),
        framework_version=outcome.environment.get("framework"),
        fingerprint=outcome.fingerprint.get("key"),
        vendor_code="; ".join(outcome.vendor_code),
    )
    values.update(
        {f"{name}_{unit}" if unit else name: outcome.value(name) for name, unit in (*FIGURES, *MEANWHILE, *LATER)}
    )
    return values


def measured(outcome: Outcome) -> dict[str, float | None]:
    """Return the figures of a measurement by the names of their columns."""
    return {f"{figure.name}_{figure.unit}": outcome.value(figure.name) for figure in outcome.figures}


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value
