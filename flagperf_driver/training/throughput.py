"""The throughputs of a training: p_whole, p_train and p_core, in samples per second."""

from __future__ import annotations


def throughputs(
    samples: int, whole_s: float, training_s: float, measured_samples: int, computing_s: float
) -> dict[str, float | None]:
    """Return samples per second of the whole time, of the time without evaluation, and of the measured steps.

    The measured steps exclude the warm-up; their time excludes waiting for input.
    """
    return {
        "p_whole": _rate(samples, whole_s),
        "p_train": _rate(samples, training_s),
        "p_core": _rate(measured_samples, computing_s),
    }


def _rate(samples: int, seconds: float) -> float | None:
    return samples / seconds if samples and seconds > 0 else None
