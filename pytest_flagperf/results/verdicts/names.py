"""The names of all verdicts, each with its kind and what it judges; the names are the patterns of ``[[expected]]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pytest_flagperf.results.verdicts.verdict import VerdictKind


class VerdictMeaning(NamedTuple):
    """The kind of a verdict, and what must be true for it to pass."""

    kind: VerdictKind
    passes: str


_KIND = VerdictKind
VERDICTS: Mapping[str, VerdictMeaning] = {
    "finished": VerdictMeaning(_KIND.FINISHED, "every rank of the round ended without an error"),
    "own_log": VerdictMeaning(
        _KIND.FIGURES, "each rank's log belongs to this round, host and rank, and no curve is that of an earlier round"
    ),
    "consistent": VerdictMeaning(_KIND.FIGURES, "figures that are measured in two ways agree"),
    "in_range": VerdictMeaning(_KIND.FIGURES, "every logged figure has a possible value"),
    "loss_finite": VerdictMeaning(_KIND.CONVERGENCE, "every logged loss is a finite number"),
    "real_data": VerdictMeaning(_KIND.CONVERGENCE, "the round trained to the target on the suite's data"),
    "learned": VerdictMeaning(_KIND.CONVERGENCE, "the loss fell and the metric improved, by more than noise"),
    "experts": VerdictMeaning(
        _KIND.CONVERGENCE, "with a mixture of experts: no expert gets more than max_expert_load times the mean"
    ),
    "target": VerdictMeaning(_KIND.CONVERGENCE, "an evaluation of the whole evaluation set reached the target"),
    "agrees": VerdictMeaning(_KIND.CONVERGENCE, "the log's last record and its evaluations agree on the convergence"),
    "not_too_early": VerdictMeaning(
        _KIND.CONVERGENCE, "the target was not reached earlier than the suite's reference curves allow"
    ),
    "parity": VerdictMeaning(_KIND.CONVERGENCE, "with parity_samples: the loss follows the suite's reference curves"),
    "valid": VerdictMeaning(_KIND.VALID, "no validity warning; fails only with --strict"),
    "p_whole": VerdictMeaning(_KIND.THROUGHPUT, "the throughput of the whole training is a finite number above 0"),
    "p_train": VerdictMeaning(_KIND.THROUGHPUT, "the throughput without evaluations is a finite number above 0"),
    "p_core": VerdictMeaning(_KIND.THROUGHPUT, "the throughput of the measured steps is a finite number above 0"),
    "mfu": VerdictMeaning(_KIND.THROUGHPUT, "the chips computed no more than their peak"),
    "vendor_factor": VerdictMeaning(_KIND.THROUGHPUT, "a vendor's steps gain no more than can be explained"),
    "measured_steps": VerdictMeaning(_KIND.THROUGHPUT, "enough steps were measured after the warm-up"),
    "samples": VerdictMeaning(_KIND.THROUGHPUT, "the counts of steps and samples are numbers above 0"),
    "points": VerdictMeaning(_KIND.MEASURED, "the measurement has points, and their records are valid"),
    "measured": VerdictMeaning(_KIND.MEASURED, "the figure of a measurement is a finite number above 0"),
    "possible": VerdictMeaning(
        _KIND.MEASURED, "the figure is at most 105 % of the chip's declared peak, and at least the suite's own bound"
    ),
    "repeatable": VerdictMeaning(
        _KIND.MEASURED, "the figure varies between valid rounds, or in one round, by at most the suite's bound"
    ),
    "reaches": VerdictMeaning(_KIND.REACHES, "the figure is at least the share of the peak that the vendor promises"),
    "uniform": VerdictMeaning(_KIND.UNIFORM, "no device and no host is slower than the others"),
    "speedup": VerdictMeaning(_KIND.SPEEDUP, "many cards are faster than one card"),
    "efficiency": VerdictMeaning(_KIND.EFFICIENCY, "the speed-up per card is at least the required efficiency"),
    "baseline": VerdictMeaning(
        _KIND.BASELINE,
        "no figure is worse than the accepted one; of kind incomparable if the baseline cannot be compared with",
    ),
    "expected": VerdictMeaning(_KIND.EXPECTED, "an expected failure occurred; fails only with --strict"),
    "record": VerdictMeaning(_KIND.OTHER, "the stored verdicts of a test can be written and read"),
    "worker": VerdictMeaning(_KIND.OTHER, "the process of pytest-xdist that ran the test did not die"),
}
