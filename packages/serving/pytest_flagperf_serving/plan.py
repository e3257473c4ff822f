"""What a serving case needs of its shape and its config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_flagperf.case import Shape
from pytest_flagperf.catalog import REFERENCE, Suite
from pytest_flagperf.kind import DurationEstimate
from pytest_flagperf.plan import Plan
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.runtime import runtimes

from .suite import ESTIMATE, LEFT_OUT, LIMITS, WEIGHTS_OF

if TYPE_CHECKING:
    from pytest_flagperf.selection import Selected


def training(plan: Plan, chosen: Sequence[Selected]) -> Selected | None:
    """Return the training of the run whose weights a case serves; None if it trains its model itself.

    Containers do not see the folder of the run, and a server that runs already has its own weights.
    """
    if plan.synthetic or plan.config["accuracy_set"] or plan.config["endpoint"] or runtimes()[plan.runtime].uses_images:
        return None
    expected = plan.config[WEIGHTS_OF], plan.vendor, plan.scale, plan.case.hardware
    for one in chosen:
        found = f"{one.suite.name}:{one.case.shape}", one.vendor.name, one.scale, one.case.hardware
        if found == expected and not (one.throughput_only or one.case.variant):
            return one
    return None


def measures(config: Mapping[str, Any]) -> str:
    """Return what a case measures, and what it leaves out."""
    rates = " and the highest rate" if config["rate_most_s"] else ""
    left_out = ", ".join(map(str, config[ESTIMATE].get(LEFT_OUT, [])))
    without = f" (not {left_out}: too much for the memory)" if left_out else ""
    return f"{', '.join(map(str, config['concurrencies']))} requests at once{without}{rates}"


def longest(config: Mapping[str, Any]) -> DurationEstimate:
    """Return how long the measurement takes at most, of which the config has the limits."""
    number, searches = len(config["concurrencies"]), len(LIMITS)
    seconds = number * config["point_most_s"] + searches * config["rate_most_s"]
    source = (
        f"{count(number, 'concurrency').replace('ys', 'ies')} of at most {quantity(config['point_most_s'], 's')},"
        f" {searches} searches of at most {quantity(config['rate_most_s'], 's')}; without the start of the server"
    )
    return DurationEstimate(seconds, source, at_most=True)


def problems(scale: str, shape: Shape, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a case cannot be served."""
    if scale == REFERENCE and not config["accuracy_set"] and not config["throughput_only"]:
        yield "no published weights at the reference scale; pass --synthetic for random ones, or --scale=small"
    if config["accuracy_set"] and not config["accuracy_reference"]:
        yield "accuracy_reference is empty; expected the stored scores of the weights"
    if shape.nnodes > 1:
        yield (
            f"{shape.nnodes} hosts: a serving case has one host, because its servers share nothing and its client would"
            f" measure the network; use --nodes=1x{shape.nproc}"
        )
    users = config["concurrencies"]
    if not users or any(not isinstance(one, int) or one < 1 for one in users) or users != sorted(set(users)):
        yield f"concurrencies is {users!r}; expected different numbers from 1 on, the smallest first, as in [1, 2, 4]"
    elif users[-1] < shape.nproc and not config["one_server"]:
        yield (
            f"concurrencies is {users!r}; expected a number of at least {shape.nproc}, a request for each of the"
            f" {shape.nproc} servers; set concurrencies, or use fewer devices"
        )
    fewest = {
        "prompt_tokens": 1, "answer_tokens": 2, "accuracy_texts": 1, "rate_requests": 1, "accuracy_requests": 0,
        "accuracy_answer_tokens": 1,
    }  # fmt: skip
    for key, least in fewest.items():
        if config[key] < least:
            yield f"{key} is {config[key]}; expected at least {least}"
    for key in ("server_ttft_s", "server_tpot_s", "interactive_ttft_s", "interactive_tpot_s", "rate_precision"):
        if not config[key] > 0:
            yield f"{key} is {config[key]:g}; expected a number above 0"
    for time in ("ttft_s", "tpot_s"):
        strict, wide = config[f"interactive_{time}"], config[f"server_{time}"]
        if strict > wide:
            yield f"interactive_{time} is {strict:g}; expected at most server_{time}, {wide:g}"
    model: Mapping[str, Any] = config["case_config"]
    yield from _standing(config)
    places, longest = config["prompt_tokens"] + config["answer_tokens"], model.get("max_seq_length")
    if longest is not None and config["prompt_tokens"] > longest:
        yield f"prompt_tokens is {config['prompt_tokens']}; expected at most {longest}, the length of a held-out text"
    old = model.get("rope_old_context")
    if old is not None and places > old:
        yield f"prompt_tokens and answer_tokens are {places:,} together; expected at most {old:,}, the model's context"


def missing_data(suite: Suite, scale: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the data directory does not have; preflight looks on each host."""
    if not config["data_dir"] or config["throughput_only"]:
        return
    folder = Path(config["data_dir"])
    tests = {"file": Path.is_file, "folder": Path.is_dir}
    missing = [item.path for item in suite.scales[scale].data if not tests[item.kind](folder / item.path)]
    if missing:
        readme = (suite.path.parent / "README.md").relative_to(suite.root)
        yield f"{folder} has no {', '.join(missing)}; {readme} has the layout of this folder, and how to get its files"


def _standing(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a server that the suite does not bring."""
    endpoint, words = config["endpoint"], config.get("server_command")
    if endpoint and not re.match(r"https?://[^/]", endpoint):
        yield f"endpoint is {endpoint!r}; expected a URL, as in http://10.0.0.7:8000"
    if endpoint and not (config["weights"] or config["accuracy_set"] or config["throughput_only"]):
        yield (
            "endpoint has no weights to judge its answers by; set weights to the folder that it serves, or pass"
            " --synthetic to measure only speed"
        )
    if not endpoint and words is not None and not any("{port}" in word for word in words):
        yield f"server_command is {words!r}; expected the words of a server, one of them with {{port}}, or an endpoint"
