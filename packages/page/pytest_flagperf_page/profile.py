"""The profile of a case's steps on the page: where a step's time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from pytest_flagperf.results.figures.units import count, plain, quantity
from pytest_flagperf.results.measured.outcome import Outcome, TrainingWork
from pytest_flagperf.results.measured.profile import Profile, peaks_sentence

from .html import Name, Number, figures, folded, table


def html(rounds: Sequence[Outcome]) -> str:
    """Return the profile of the first round that has one; empty without."""
    outcome = next((outcome for outcome in rounds if outcome.profile), None)
    if outcome is None or outcome.profile is None:
        return ""
    profile = outcome.profile
    peaks = peaks_sentence(profile.of_peaks)
    about = f"of {count(profile.steps, 'step')} after the measured ones, round {outcome.round}"
    kinds = [(Name(kind), *_time(profile, seconds)) for kind, seconds in profile.kinds.items()]
    kernels = [
        (Name(kernel.name), kernel.kind, *_time(profile, kernel.time), Number(plain(kernel.calls)))
        for kernel in profile.kernels
    ]
    return (
        f"<h3>Profile</h3><p>Largest loss: <strong>{escape(profile.largest_loss)}</strong>"
        f"{f'; {escape(peaks)}' if peaks else ''} "
        f'<span class="soft">{about}</span></p>{figures(("a step", "value"), list(_rows(profile, outcome.work)))}'
        f"{table(('kernels', 'time a step', 'share of a step'), kinds)}"
        + folded(
            f"The {len(kernels)} largest kernels",
            table(("kernel", "kind", "time a step", "share of a step", "calls a step"), kernels),
        )
    )


def _time(profile: Profile, seconds: float) -> tuple[Number, Number]:
    return Number(quantity(seconds, "s")), Number(quantity(profile.share(seconds), "share"))


def _rows(profile: Profile, work: TrainingWork) -> Iterator[tuple[str, str]]:
    yield "time of a measured step", quantity(profile.step_time, "s")
    yield "time of a profiled step", quantity(profile.profiled_step_time, "s")
    yield "device idle", quantity(profile.share(profile.input_wait + profile.idle_time), "share")
    yield "of it waiting for input", quantity(profile.share(profile.input_wait), "share")
    yield "host time", quantity(profile.host_time, "s")
    yield "kernels and copies", plain(profile.calls)
    yield "launches", plain(profile.launches)
    waited = f", {quantity(profile.wait_time, 's')}" if profile.waits else ""
    yield "waits for the device", plain(profile.waits) + waited
    yield "copied between host and device", quantity(profile.host_bytes, "bytes")
    if work.step_flops is not None:
        yield "FLOPs of the model", f"{plain(work.step_flops)} FLOP"
    if moved := profile.bytes:
        yield "bytes of memory, at least", quantity(moved.least, "bytes")
        if moved.operations is not None:
            yield "bytes of memory, of the operations", quantity(moved.operations, "bytes")
    elif profile.no_bytes:
        yield "bytes of memory", f"not counted: {profile.no_bytes}"
    for name, share in profile.of_peaks.items():
        yield f"{name}: time at the chip's peak", quantity(share, "share")
    for backend, seconds in profile.attention.items():
        yield f"attention by {backend} kernels", quantity(seconds, "s")
    if profile.peak_share is not None:
        yield "matrix products, convolutions and attention: share of the peak", quantity(profile.peak_share, "share")
    if profile.graph_breaks is not None:
        yield "graph breaks", plain(profile.graph_breaks)
