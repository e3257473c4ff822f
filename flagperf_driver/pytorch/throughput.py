"""The throughputs of a training: p_whole, p_train and p_core, in samples per second."""

from __future__ import annotations


def throughputs(
    samples: int, whole_s: float, training_s: float, measured_samples: int, computing_s: float
) -> dict[str, float | None]:
    """Return samples by the whole time, by the time without evaluation, and by the time of the measured steps alone.

    The measured steps leave out the steps of the warm-up, and their time the waiting for input.
    """
    return {
        "p_whole": _rate(samples, whole_s),
        "p_train": _rate(samples, training_s),
        "p_core": _rate(measured_samples, computing_s),
    }


def _rate(samples: int, seconds: float) -> float | None:
    return samples / seconds if samples and seconds > 0 else None
