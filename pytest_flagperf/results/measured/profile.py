"""The profile of a round: the record of its first rank, checked, and one sentence about the largest loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from flagperf_driver.training import profile as driver
from flagperf_driver.training.profile import StepBytes
from pytest_flagperf.results.figures.units import plain, quantity
from pytest_flagperf.stored import FormatError, type_check

NO_LOSS = 0.05
"""A loss of a smaller share of a step is not named."""
GOOD_PEAK = 0.7
"""The share of the dense peak that large matrix products reach."""
_BOUND_BY_MEMORY = (driver.POINTWISE, driver.REDUCTION, driver.NORMALIZATION)
_OF_MODEL = (driver.MATRIX, driver.FP32_MATRIX, driver.CONVOLUTION, driver.ATTENTION)
_ALL = frozenset([*(kind for kind, _ in driver.KINDS), driver.OTHER])


@dataclass(frozen=True)
class Kernel:
    """A kernel's seconds and calls in one step."""

    name: str
    kind: str
    time: float
    calls: float


class FlopsAndPeaks(NamedTuple):
    """The FLOPs of a step of one card, and the card's declared peaks in FLOP/s and B/s; None if they are unknown."""

    flops: float | None = None
    peak_flops: float | None = None
    peak_bytes: float | None = None


@dataclass(frozen=True)
class Profile:
    """Seconds, calls and bytes of one step, the mean of ``steps`` profiled steps."""

    steps: int
    step_time: float
    """The mean time of the measured steps, with waiting for input."""
    input_wait: float
    """The measured steps' waiting for input."""
    profiled_step_time: float
    """The time of a profiled step without waiting for input."""
    host_time: float
    """The host's time for a step when the device has no earlier work: the shortest of three steps."""
    busy_time: float
    """The time in which at least one kernel or copy ran; the rest of a step is idle."""
    kinds: Mapping[str, float]  # the time by kind of kernel; FP32 matrix products are apart, also in tf32
    exposed: Mapping[str, float]
    """The time in which only copies between host and device, or only collectives, ran."""
    attention: Mapping[str, float]
    """The time of attention by backend."""
    kernels: tuple[Kernel, ...]
    """The kernels with the most time, in this order."""
    calls: float
    """The number of kernels and copies."""
    launches: float  # the host's calls that start kernels and copies
    waits: float
    """The host's calls that wait for the device."""
    wait_time: float  # their time
    host_bytes: float
    """The bytes copied between host and device."""
    graph_breaks: int | None = None
    """The places where the compiler splits the model; None if it is not compiled."""
    bytes: StepBytes | None = None  # of the device's memory: see the next table
    no_bytes: str = ""
    """The reason why the bytes could not be counted."""
    of_peaks: Mapping[str, float] = field(default_factory=dict)
    """The time that a step takes at each declared peak alone, as a share of a measured step without its input wait."""
    peak_share: float | None = None
    """The model's FLOPs over the time of matrix products, convolutions and attention, as a share of the peak."""
    largest_loss: str = ""  # where most avoidable time is lost, from 5 % of a step on

    @property
    def idle_time(self) -> float:
        """The time of a step in which the device has its input and does nothing.

        The profiler slows some steps down, and a busy host others: the shorter time is less distorted.
        """
        return max(0.0, min(self.step_time - self.input_wait, self.profiled_step_time) - self.busy_time)

    def share(self, seconds: float) -> float:
        """Return the share of a measured step."""
        return seconds / self.step_time if self.step_time else 0.0

    def of_kinds(self, kinds: Iterable[str]) -> float:
        return sum(self.kinds.get(kind, 0.0) for kind in kinds)


FLOPS, LEAST_BYTES, OPERATIONS = "FLOPs", "bytes at least", "bytes of the operations"
"""What of a step is compared with the chip's peaks."""


def of_record(value: object, work: FlopsAndPeaks, where: str) -> Profile:
    """Return the profile of a rank's record with what follows from it; raise FormatError for an invalid record."""
    if isinstance(value, dict) and "problem" in value:
        raise FormatError(f"{where}: {value['problem']}")
    profile = type_check.typed(Profile, value, where)
    for name, number, least in _numbers(profile):
        if not least <= number < math.inf:
            raise FormatError(f"{where}: {name} is {number}; expected a number, at least {least}")
    kinds = {*profile.kinds, *profile.exposed, *(kernel.kind for kernel in profile.kernels)}
    if unknown := sorted(kinds - _ALL):
        raise FormatError(f"{where}: unknown kind {unknown[0]!r:.40}; allowed: {', '.join(sorted(_ALL))}")
    compute_s, of_model = seconds_at(work.peak_flops, work.flops), profile.of_kinds(_OF_MODEL)
    profile = replace(
        profile,
        kernels=profile.kernels[: driver.KERNELS],
        of_peaks=_of_peaks(profile, compute_s, work.peak_bytes),
        peak_share=compute_s / of_model if compute_s and of_model else None,
    )
    return replace(profile, largest_loss=largest_loss(profile))


def _of_peaks(profile: Profile, compute_s: float | None, peak_bytes: float | None) -> dict[str, float]:
    moved, computing_s = profile.bytes, profile.step_time - profile.input_wait
    times = {
        FLOPS: compute_s,
        LEAST_BYTES: seconds_at(peak_bytes, moved.least if moved else None),
        OPERATIONS: seconds_at(peak_bytes, moved.operations if moved else None),
    }
    return {name: time / computing_s for name, time in times.items() if time is not None and computing_s > 0}


def seconds_at(rate: float | None, amount: float | None) -> float | None:
    """Return the time of an amount at a rate; None if one of them is unknown or 0."""
    return amount / rate if amount and rate else None


def peaks_sentence(of_peaks: Mapping[str, float]) -> str:
    """Return ``of the chip's peaks: FLOPs 40 %, bytes at least 22 %``; empty without a declared peak."""
    shares = ", ".join(f"{name} {_percent(share)}" for name, share in of_peaks.items())
    return shares and f"of the chip's peaks: {shares}"


def _numbers(profile: Profile) -> Iterator[tuple[str, float, int]]:
    """Yield the name, the value and the least possible value of each number of the record."""
    for name, value in vars(profile).items():
        if isinstance(value, StepBytes):
            yield from ((f"{name}.{key}", number, 0) for key, number in vars(value).items() if number is not None)
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{key}", number, 0) for key, number in value.items())
        elif isinstance(value, (int, float)):
            yield name, value, int(name == "steps")
    for place, kernel in enumerate(profile.kernels):
        yield f"kernels.{place}.time", kernel.time, 0
        yield f"kernels.{place}.calls", kernel.calls, 0


# -- the largest loss ----------------------------------------------------------------------------------------


class TimeLoss(NamedTuple):
    """A cause of lost time."""

    part: str
    seconds: Callable[[Profile], float]
    """The seconds of a step that the part takes."""
    words: Callable[[Profile, str], str]
    """Of the profile and of the part's share of a step."""
    avoidable: float = 1.0
    """The share of the seconds that a better program may save: what decides which loss is the largest."""


def _idle_words(profile: Profile, share: str) -> str:
    idle = f"device idle {share}"
    if profile.waits >= 1:
        return f"{idle}, {plain(profile.waits)} waits a step"
    if profile.host_time >= 0.9 * (profile.step_time - profile.input_wait):
        return f"{idle}, {plain(profile.launches)} launches a step take {quantity(profile.host_time, 's')}"
    return idle


def _other_words(profile: Profile, share: str) -> str:
    largest = next((f", most in {kernel.name}" for kernel in profile.kernels if kernel.kind == driver.OTHER), "")
    return f"{share} of a step{largest}"


def _below_peak(profile: Profile) -> float:
    if profile.peak_share is None:
        return 0.0
    return max(0.0, profile.of_kinds(_OF_MODEL) * (1 - profile.peak_share / GOOD_PEAK))


def _fp32(profile: Profile) -> float:
    """The time of matrix products in fp32 or tf32, if the others have a lower precision."""
    return profile.of_kinds([driver.FP32_MATRIX]) if profile.kinds.get(driver.MATRIX) else 0.0


def _attention(backend: str, avoidable: float) -> TimeLoss:
    return TimeLoss(
        "attention",
        lambda profile: profile.attention.get(backend, 0.0),
        lambda _, share: f"{backend} kernel, {share}",
        avoidable,
    )


def _kinds(part: str, kinds: Iterable[str], words: str, avoidable: float = 1.0) -> TimeLoss:
    return TimeLoss(part, lambda profile: profile.of_kinds(kinds), lambda _, share: f"{share} {words}", avoidable)


def _exposed(part: str, kind: str) -> TimeLoss:
    return TimeLoss(part, lambda profile: profile.exposed.get(kind, 0.0), lambda _, share: f"{share} not overlapped")


LOSSES = (
    TimeLoss("input", lambda profile: profile.input_wait, lambda _, share: f"{share} waiting"),
    TimeLoss("host", lambda profile: profile.idle_time, _idle_words),
    # The softmax alone: its matrix products are among the others.
    _attention(driver.MATH, 1.0),
    # Twice the time of a kernel for the chip.
    _attention("efficient", 0.5),
    _kinds("layout", [driver.LAYOUT], "copies"),
    _exposed("host copies", driver.HOST_COPY),
    _exposed("collectives", driver.COLLECTIVE),
    _exposed("all-to-all", driver.EXCHANGE),
    TimeLoss("matrix products", _fp32, lambda _, share: f"{share} in fp32", 0.75),
    TimeLoss(
        "matrix products",
        _below_peak,
        lambda profile, _: f"{_percent(profile.peak_share)} of the peak",
    ),
    # Fusing kernels may halve their bytes.
    _kinds("memory", _BOUND_BY_MEMORY, "pointwise, reductions and normalization", 0.5),
    _kinds("optimizer", [driver.OPTIMIZER], "of a step", 0.5),
    TimeLoss("other kernels", lambda profile: profile.of_kinds([driver.OTHER]), _other_words, 0.5),
)
"""The rules: the one with the most avoidable seconds gives the sentence."""


def largest_loss(profile: Profile) -> str:
    """Return one line that names the largest loss, or that no loss is large: ``input: 31 % waiting``."""
    loss = max(LOSSES, key=lambda loss: loss.seconds(profile) * loss.avoidable)
    seconds = loss.seconds(profile)
    if profile.share(seconds * loss.avoidable) < NO_LOSS:
        return f"no loss above {_percent(NO_LOSS)} of a step"
    return f"{loss.part}: {loss.words(profile, _percent(profile.share(seconds)))}"


def _percent(share: float | None) -> str:
    return quantity(share, "share", 3)
