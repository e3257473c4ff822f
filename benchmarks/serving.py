"""The client of serving cases beside ``vllm bench serve``, on the same server (``beside_vllm.py``)."""

from __future__ import annotations

import json
import os
import statistics

from pytest_flagperf.catalog import Catalog
from tests import environments

from .section import REPO, Goal, Section, table, timed

FIGURES = (("output tokens/s", 3), ("median time to the first token", 5))
"""What both measure, and how many percent it may differ."""
PAIRS = 150


def measure() -> Section:
    """Measure in the environment of ``llama31_8b:vllm``; the noise is that of the median of the pairs' ratios."""
    catalog = Catalog.scan([REPO])
    python = environments.build(catalog, catalog.suite("llama31_8b", "vllm"))
    environment = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'suites'}"}
    output = timed([python, "benchmarks/beside_vllm.py", f"--pairs={PAIRS}"], environment=environment).stdout
    pairs = [json.loads(line) for line in output.splitlines()]
    rows, goals = [], []
    for place, (name, bound) in enumerate(FIGURES):
        ours, theirs = ([pair[who][place] for pair in pairs] for who in ("ours", "theirs"))
        ratio = statistics.median(ours) / statistics.median(theirs)
        lower, _, upper = statistics.quantiles([own / other for own, other in zip(ours, theirs, strict=True)], n=4)
        medians = [f"{statistics.median(values):.4g}" for values in (ours, theirs)]
        rows.append((name, *medians, f"{ratio:.3f}", f"{lower:.3f} to {upper:.3f}"))
        noise = (upper - lower) / len(pairs) ** 0.5 * 100 / bound
        goals.append(Goal(f"{name}: ours beside theirs", bound, 100 * abs(ratio - 1), "%", noise=noise))
    head = ("figure", "our client", "vllm bench serve", "ratio of the medians", "ratios of the pairs, quartiles")
    return Section([table(head, rows)], goals)
