"""The meaning of each figure in a few words, shown beside its value."""

from __future__ import annotations

from collections.abc import Mapping

MEANINGS: Mapping[str, str] = {
    "p_whole": "samples per second of all cards over the whole training, evaluations included",
    "p_train": "samples per second of all cards, without evaluations",
    "p_core": "samples per second of all cards, without evaluations, waiting for input and warm-up steps",
    "mfu": "model FLOPs utilization: computed FLOPs per second, as a share of the chips' dense peak",
    "e2e_time": "from the start of the process to the end of the training",
    "init_time": "from the start of the process to the first training step",
    "raw_train_time": "from the first training step to the end of the training, evaluations included",
    "train_no_eval_time": "the training time without evaluations",
    "pure_training_computing_time": "the training time without evaluations and without waiting for input",
    "eval_time": "the time of all evaluations",
    "compile_time": "the first step's time beyond a usual step, for compiling the model",
    "time_to_target": "from the first training step to the first evaluation at the target",
    "samples_to_target": "samples trained until the first evaluation at the target",
    "step_time_mean": "the mean time of a step, with waiting for its input",
    "step_time_p50": "half of the steps took at most this time (median)",
    "step_time_p90": "90 % of the steps took at most this time",
    "step_time_p99": "99 % of the steps took at most this time",
    "input_wait_share": "the share of the training time in which steps waited for input",
    "peak_memory": "the largest memory that tensors held at once on one card",
    "final_loss": "the training loss of the last step",
    "vendor_factor": "the time of a step with the suite's own steps over that with the vendor's",
    "straggler_spread": "the slowest rank's forward pass over that of the median rank; 1 means all ranks are equal",
    "device_power": "the mean power of one device during the training",
    "device_power_highest": "the highest power of any device during the training",
    "device_temperature": "the mean temperature of the devices",
    "device_temperature_highest": "the highest temperature of any device",
    "device_utilization": "the mean share of time in which the devices worked",
    "device_memory": "the highest memory in use on any device",
    "device_memory_mean": "the mean memory in use on the devices",
    "device_memory_total": "the memory that a device has",
    "device_sm_clock": "the mean clock of the compute units",
    "device_memory_clock": "the mean clock of the device memory",
    "device_throttled": "the largest share of time in which one cause lowered a device's clocks",
    "device_energy": "the energy of all devices during the training",
    "device_energy_covered": "the share of the training time for which the devices' energy was sampled",
    "device_energy_per_sample": "the energy of all devices for one training sample",
    "host_cpu": "the mean share of the hosts' cores in use",
    "host_memory": "the highest share of a host's memory in use",
    "host_power": "the mean power of all hosts, as far as they report it",
    "host_energy": "the energy of all hosts during the training, as far as they report it",
    "host_energy_covered": "the share of the training time for which the hosts' energy was sampled",
    "host_energy_per_sample": "the energy of all hosts for one training sample",
    "monitor_gaps": "the time during the training in which a host was not sampled",
    "core_wait": "the largest share of time in which a rank was ready to run but had no core",
    "other_cores": "the mean number of cores that other programs used",
    "core_stolen": "the share of time that the hypervisor gave to other machines",
}
SPEEDUP = "the throughput of all cards over that of one card; the ideal is the number of cards"
EFFICIENCY = "the speed-up as a share of the ideal"


def meaning(name: str, metric: str) -> str:
    """Return the meaning of a figure; ``metric`` is the name of the suite's own metric."""
    return MEANINGS.get(name, "the quality of the model in the last evaluation" if name == metric else "")
