"""The unit, the better direction and the meaning of every figure that a round may have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from flagperf_driver.logged_step import STEP_FIGURES

MONEY = "money"
"""The unit of costs; the currency of the site's prices replaces it."""
RATE = "samples/s"
"""The unit of throughputs; a suite's sample_unit, such as images, replaces ``samples``."""


class FigureKind(NamedTuple):
    """The unit of a figure, ``higher``, ``lower`` or None for its better direction, and its meaning in a few words."""

    unit: str
    direction: str | None
    meaning: str


# fmt: off
FIGURES: Mapping[str, FigureKind] = {
    "p_whole": FigureKind(
        RATE, "higher", "samples per second of all cards over the whole training, evaluations included",
    ),
    "p_train": FigureKind(RATE, "higher", "samples per second of all cards, without evaluations"),
    "p_core": FigureKind(
        RATE, "higher", "samples per second of all cards, without evaluations, waiting for input and warm-up steps",
    ),
    "mfu": FigureKind(
        "share", "higher", "model FLOPs utilization: computed FLOPs per second, as a share of the chips' dense peak",
    ),
    "padding_share": FigureKind(
        "share", "lower", "the share of padding in the tokens that were computed; the MFU does not count it",
    ),
    "e2e_time": FigureKind(
        "s", "lower", "from the start of the process to its last record, steps for a profile included",
    ),
    "init_time": FigureKind("s", "lower", "from the start of the process to the first training step"),
    "raw_train_time": FigureKind(
        "s", "lower", "from the first training step to the end of the training, evaluations included",
    ),
    "train_no_eval_time": FigureKind("s", "lower", "the training time without evaluations"),
    "pure_training_computing_time": FigureKind(
        "s", "lower", "the training time without evaluations and without waiting for input",
    ),
    "eval_time": FigureKind("s", "lower", "the time of all evaluations"),
    "compile_time": FigureKind("s", "lower", "the first step's time beyond a usual step, for compiling the model"),
    "time_to_target": FigureKind("s", "lower", "from the first training step to the first evaluation at the target"),
    "samples_to_target": FigureKind("samples", "lower", "samples trained until the first evaluation at the target"),
    "step_time_mean": FigureKind("s", "lower", "the mean time of a step, with waiting for its input"),
    "step_time_p50": FigureKind("s", "lower", "half of the steps took at most this time (median)"),
    "step_time_p90": FigureKind("s", "lower", "90 % of the steps took at most this time"),
    "step_time_p99": FigureKind("s", "lower", "99 % of the steps took at most this time"),
    "input_wait_share": FigureKind("share", "lower", "the share of the training time in which steps waited for input"),
    "peak_memory": FigureKind("bytes", "lower", "the largest memory that tensors held at once on one card"),
    "final_loss": FigureKind("", "lower", "the training loss of the last step"),
    "vendor_factor": FigureKind("x", None, "the time of a step without the vendor's code over that with it"),
    "straggler_spread": FigureKind(
        "x", "lower", "the slowest rank's forward pass over that of the median rank; 1 means all ranks are equal",
    ),
    "device_power": FigureKind("W", "lower", "the mean power of one device during the training"),
    "device_power_highest": FigureKind("W", "lower", "the highest power of any device during the training"),
    "device_temperature": FigureKind("C", "lower", "the mean temperature of the devices"),
    "device_temperature_highest": FigureKind("C", "lower", "the highest temperature of any device"),
    "device_utilization": FigureKind("share", None, "the mean share of time in which the devices worked"),
    "device_memory": FigureKind("bytes", "lower", "the highest memory in use on any device"),
    "device_memory_mean": FigureKind("bytes", "lower", "the mean memory in use on the devices"),
    "device_memory_total": FigureKind("bytes", None, "the memory that a device has"),
    "device_sm_clock": FigureKind("MHz", None, "the mean clock of the compute units"),
    "device_memory_clock": FigureKind("MHz", None, "the mean clock of the device memory"),
    "device_throttled": FigureKind(
        "share", "lower", "the largest share of time in which one cause lowered a device's clocks",
    ),
    "device_energy": FigureKind("J", "lower", "the energy of all devices during the training"),
    "device_energy_covered": FigureKind(
        "share", "higher", "the share of the training time for which the devices' energy was sampled",
    ),
    "device_energy_per_sample": FigureKind("J/sample", "lower", "the energy of all devices for one training sample"),
    "host_cpu": FigureKind("share", None, "the mean share of the hosts' cores in use"),
    "host_memory": FigureKind("share", "lower", "the highest share of a host's memory in use"),
    "host_power": FigureKind("W", "lower", "the mean power of all hosts, as far as they report it"),
    "host_energy": FigureKind("J", "lower", "the energy of all hosts during the training, as far as they report it"),
    "host_energy_covered": FigureKind(
        "share", "higher", "the share of the training time for which the hosts' energy was sampled",
    ),
    "host_energy_per_sample": FigureKind("J/sample", "lower", "the energy of all hosts for one training sample"),
    "energy_to_target": FigureKind(
        "J", "lower", "the energy of all devices during a training that ended at its target",
    ),
    "carbon_to_target": FigureKind("g", "lower", "the carbon dioxide of this energy, by the site's factor"),
    "cost_to_target": FigureKind(MONEY, "lower", "the price of all cards from the first training step to the target"),
    "cost_per_million": FigureKind(MONEY, "lower", "the price of all cards for a million samples of the training"),
    "monitor_gaps": FigureKind("s", "lower", "the time during the training in which a host was not sampled"),
    "core_wait": FigureKind(
        "share", "lower", "the largest share of time in which a rank was ready to run but had no core",
    ),
    "other_cores": FigureKind("cores", "lower", "the mean number of cores that other programs used"),
    "core_stolen": FigureKind("share", "lower", "the share of time that the hypervisor gave to other machines"),
    **{name: FigureKind(one.unit, one.direction, one.meaning) for name, one in STEP_FIGURES.items()},
    "save_pause": FigureKind("s", "lower", "the mean time that a checkpoint stopped the training"),
    "save_write_time": FigureKind("s", "lower", "the mean time to write a checkpoint while the training continued"),
    "restarts": FigureKind("", "lower", "how often a training was started again from its checkpoint"),
    "steps_repeated": FigureKind("steps", "lower", "the steps that were done again after restarts"),
    "wall_time": FigureKind("s", "lower", "the time from the first start of a restarted training to its end"),
    "lost_time": FigureKind("s", "lower", "the part of the wall time that became no progress"),
    "goodput": FigureKind("share", "higher", "the share of the wall time that became progress of the training"),
}
# fmt: on
"""By name. A test compares this table with the figures of measured rounds."""
SPEEDUP = "the throughput of all cards over that of one card; the ideal is the number of cards"
EFFICIENCY = "the speed-up as a share of the ideal"


def meaning(name: str, metric: str, of_suite: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the meaning of a figure.

    ``metric`` is the name of the suite's own metric, ``of_suite`` the meanings of a measurement's figures.
    """
    if name in of_suite:
        return of_suite[name]
    if name in FIGURES:
        return FIGURES[name].meaning
    return "the quality of the model in the last evaluation" if name == metric else ""
