"""Devices by nvidia-smi, where NVML's library cannot be loaded: the sampler takes this in its place.

A process a sample, and no health: NVML is what figures should come from.
"""

from __future__ import annotations

from flagperf_driver.node.printed import NotUnderstood, figure, index, known, refused

FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "temperature.gpu",
    "power.draw",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "clocks.sm",
    "clocks.mem",
)
COMMAND = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]


def parse(text: str) -> list[dict[str, object]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or index(lines[0].split(",")[0]) is None:
        raise refused(text, "no device of nvidia-smi")
    answering = [reading for reading in map(_device, lines) if len(reading) > 1]
    if not answering:
        raise refused(text, "no device that answers")
    return answering


def _device(line: str) -> dict[str, object]:
    told = [part.strip() for part in line.split(",")]
    number = index(told[0])
    if len(told) != len(FIELDS) or number is None:
        raise NotUnderstood(f"{line[:80]!r} is not {len(FIELDS)} fields, of which the first is the device's number")
    _, name, uuid, driver, temperature, power, used, total, utilization, sm_clock, memory_clock = told
    return known(
        device=number,
        name=_word(name),
        uuid=_word(uuid),
        driver=_word(driver),
        temperature=figure(temperature),
        power=figure(power),
        memory_used=figure(used),
        memory_total=figure(total),
        utilization=figure(utilization),
        sm_clock=figure(sm_clock),
        memory_clock=figure(memory_clock),
    )


def _word(told: str) -> str | None:
    """What stands in brackets is why there is none: [N/A], [GPU is lost]."""
    return None if told.startswith("[") else told
