"""The memory of a server by --plan, beside what torch and vLLM allocate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.catalog import Chip
from pytest_flagperf.config import Resolved
from pytest_flagperf.kind import kind_of
from pytest_flagperf.plan import Plan
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf_serving.memory import request_bytes, weight_bytes, with_memory
from serving_tests.conftest import REPO
from serving_tests.test_huggingface import program
from serving_tests.test_kind import CATALOG, planned

OF_8B: dict[str, Any] = {"suite": "llama31_8b:vllm", "scale": "reference", "synthetic": True}


def on_h100(shape: str, *settings: str) -> Plan:
    return planned(shape, "nvidia", "H100", *settings, **OF_8B)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama31_8b", "gpt_oss_20b"])
def test_weights_and_cache_are_as_large_as_those_of_torch(model: str, torch_python: str, tmp_path: Path) -> None:
    plan = planned("1:1", "cpu", "CPU", "prompt_tokens=60", "answer_tokens=40", suite=f"{model}:transformers")
    values = tmp_path / "plan.json"
    training = {key: {"value": value} for key, value in plan.config["case_config"].items()}
    values.write_text(json.dumps({"values": training}))
    suite = REPO / "suites" / model / "pytorch"
    weights, cache = map(int, program(torch_python, "measure", suite, values, tmp_path / "model").split())
    config, estimate = plan.config["case_config"], plan.config["memory_estimate"]
    assert 2 * weights == pytest.approx(estimate["weights"], rel=1e-3), "in fp32, the precision of the training"
    assert 2 * cache == pytest.approx(estimate["request"], rel=0.01)
    key = "attention_window" if "attention_window" in config else "num_kv_heads"
    other = {**config, key: 2 * config[key]}
    assert request_bytes(other, 100, "bf16", 1) > 1.1 * cache, f"the control: {key}"


def test_the_cache_is_as_large_as_vllm_says() -> None:
    """As vLLM 0.32 prints with 1 GiB of cache on a CPU: "Maximum concurrency for 130 tokens per request: 4096.00x"."""
    small = planned().config["case_config"]
    assert request_bytes(small, 2 * 128, "fp32", 1) == 2**30 / 4096, "two pages of 128 tokens"
    assert request_bytes({**small, "num_kv_heads": small["num_heads"]}, 2 * 128, "fp32", 1) != 2**30 / 4096


def test_tensor_parallelism_divides_weights_and_heads() -> None:
    one, two = (on_h100(shape).config["memory_estimate"] for shape in ("1:1", "1:2"))
    assert one["weights"] == pytest.approx(2 * 8.03e9, rel=1e-3), "the parameters of Llama 3.1 8B in bf16"
    assert one["request"] == 1280 * 131_072, "32 layers, 8 heads of 128, keys and values in bf16"
    assert (two["weights"], two["request"]) == (one["weights"] / 2, one["request"] / 2)
    model = on_h100("1:1").config["case_config"]
    assert request_bytes(model, 1, "bf16", 16) == request_bytes(model, 1, "bf16", 8), "a head is copied"
    assert weight_bytes(model, 8.03e9, "fp8", 1) < 0.6 * weight_bytes(model, 8.03e9, "bf16", 1)


def test_a_concurrency_that_does_not_fit_is_left_out_and_said() -> None:
    plan = on_h100("1:1", "concurrencies=[1,256,512]")
    assert plan.config["concurrencies"] == [1, 256]
    assert plan.values["concurrencies"].where == "those of [1, 256, 512] that fit into 80 GiB"
    words = kind_of(plan).describe(plan)
    assert words.measures == "1, 256 requests at once (not 512: too much for the memory) and the highest rate"
    assert words.facts["memory"].endswith(
        "cache for a request of 1,280 tokens; the 80 GiB of H100 hold 369 requests at once"
    )
    assert on_h100("1:2", "concurrencies=[1,256,512]").config["concurrencies"] == [1, 256, 512], "the control"
    small, training = Chip(memory_gib=12), CATALOG.suite("llama31_8b", "pytorch")
    _, problems = with_memory(Resolved(plan.values, (), ()), plan.shape, small, training)
    assert problems == ["weights and the cache of a request need 15.1 GiB, and a device has 12 GiB"]


def test_the_time_of_a_case_follows_from_the_limits_of_its_points() -> None:
    plan = on_h100("1:1", "concurrencies=[1,4]")
    found = kind_of(plan).estimate(plan, StoredRuns(Path("none")))
    assert not isinstance(found, str)
    assert (found.seconds, found.at_most) == (2 * 60 + 2 * 240, True)
