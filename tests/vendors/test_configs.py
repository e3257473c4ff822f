"""Every config of every vendor gives a valid plan, and every case of FlagPerf has a config.

A training ends after as many samples as FlagPerf's config of the same case allows (tests/flagperf). Configs there that
end a throughput measurement early are left out: ours limit the steps of such measurements instead.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.case import Case, Shape
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.kinds.training.forecast import most_samples
from pytest_flagperf.plan import Plan, PlanRequest, make_plan, memory
from tests.helpers import published
from tests.helpers.published import case

REPO = Path(__file__).resolve().parent.parent.parent
CATALOG = Catalog.scan([REPO])
SHAPES = {Shape(1, 1), Shape(1, 8), Shape(2, 8)}
CONFIGS = [
    (vendor.name, suite.name, hardware, shape)
    for vendor in CATALOG.vendors.values()
    for suite in CATALOG.trainings.values()
    for hardware, shape in CATALOG.configs(suite, vendor)
]
BERT, GLM, RESNET50 = "bert:pytorch", "glm:pytorch", "resnet50:pytorch"
ALL = {BERT, GLM, RESNET50}
HAVE = {
    ("nvidia", "A100"): ALL, ("nvidia", "H100"): ALL, ("nvidia", "H200"): ALL, ("kunlunxin", "R300"): ALL,
    ("iluvatar", "BI-V100"): ALL, ("metax", "C500"): {GLM, RESNET50}, ("mthreads", "S4000"): {RESNET50},
    ("dcu", "K100"): {GLM}, ("amd", "MI300X"): ALL, ("gaudi", "Gaudi3"): ALL, ("intel", "Max1550"): ALL,
}  # fmt: skip
"""FlagPerf's cases, and those of newer chips: the minimum of configs."""


@cache
def planned(vendor: str, suite: str, hardware: str, shape: Shape, throughput_only: bool | None = None) -> Plan:
    one = Case.parse(f"{suite}:{hardware}:{shape.nnodes}:{shape.nproc}:1")
    return plan_of(CATALOG, vendor, one, throughput_only=throughput_only)


def plan_of(catalog: Catalog, vendor: str, one: Case, **more: Any) -> Plan:
    return make_plan(catalog, PlanRequest(one, vendor, "reference", data_dir="/data", check_data=False, **more))


def test_every_vendor_has_what_flagperf_has_in_all_shapes() -> None:
    for (vendor, hardware), suites in HAVE.items():
        existing = {(suite, shape) for owner, suite, chip, shape in CONFIGS if (owner, chip) == (vendor, hardware)}
        assert existing >= {(suite, shape) for suite in suites for shape in SHAPES}, (vendor, hardware)


def problems(vendor: str, suite: str, hardware: str, shape: Shape) -> Iterator[str]:
    """What is wrong with the plan of a config."""
    if hardware not in CATALOG.vendors[vendor].chips:
        yield f"no chip {hardware}"
    plan = planned(vendor, suite, hardware, shape)
    config = plan.config
    if plan.peak_tflops is not None and plan.peak_tflops <= 0:
        yield f"peak_tflops is {plan.peak_tflops}"
    if plan.throughput_only != (shape.cards == 1):
        yield "1x1 measures throughput; the other shapes train to the target"
    if plan.throughput_only and planned(vendor, suite, hardware, shape, throughput_only=False).throughput_only:
        yield "cannot be trained to the target"
    for key in ("max_steps", "max_epochs", "eval_steps"):
        value = config[key]
        if value is not None and not (isinstance(value, int) and value > 0):
            yield f"{key} is {value!r}"
    # FlagPerf's limit for a throughput measurement would end a training long before the target.
    most, of_one_host = most_samples(plan), most_samples(planned(vendor, suite, hardware, Shape(1, 8)))
    if most is None or of_one_host is None or most <= 0.75 * of_one_host:
        yield f"trains at most {most} samples, the shape of one host {of_one_host}"
    own = plan.estimates[0].estimate if plan.estimates else None
    if own is not None and (plan.memory_gib is None or own.fits(plan.memory_gib) != memory.YES):
        yield f"needs {own.total / 2**30:.0f} GiB of {plan.memory_gib} on each device, by the estimate"
    until, steps = config["lr_decay"], config["max_steps"]
    if suite == BERT and isinstance(until, int) and isinstance(steps, int) and until < steps:
        yield f"the learning rate ends at step {until} of {steps}"


def test_every_config_plans_a_training_that_can_reach_its_target_and_the_small_scale_needs_none() -> None:
    assert len(CONFIGS) > 250
    assert {of: wrong for of in CONFIGS if (wrong := list(problems(*of)))} == {}
    for name, vendor in CATALOG.vendors.items():
        for suite in sorted(ALL):
            plan = make_plan(
                CATALOG, PlanRequest(Case.parse(f"{suite}:{vendor.hardware}:1:2:1"), vendor=name, scale="small")
            )
            assert plan.device == vendor.toml.framework[suite.rpartition(":")[2]].device


IMAGES = 1_281_167
"""An epoch of ImageNet."""
EARLY = 0.1
"""The share of our samples before which a config of FlagPerf only measures the throughput."""
AS_ON_A100 = [(chip, shape) for chip in ("H100", "H200") for shape in ("1x1", "1x8", "2x8")]


def per_step(plan: Plan) -> int:
    """Return the number of items, as FlagPerf counts them, in a step of all cards."""
    config = plan.config
    return int(config["train_batch_size"] * config["gradient_accumulation_steps"] * plan.case.shape.cards)


def ends_after(plan: Plan, *, limited: bool = True) -> int:
    """Return the number of items over all cards after which the config's limits end a training without its target."""
    config, step = plan.config, per_step(plan)
    samples = config["max_samples"] if limited else None
    if samples is not None:
        assert config["samples_per_item"] == 1, "max_samples counts samples, FlagPerf items"
    limits = [
        config["max_steps"] and config["max_steps"] * step,
        samples and -(-samples // step) * step,
        config["max_epochs"] and config["max_epochs"] * IMAGES,
    ]
    return int(min(filter(None, limits)))


def test_a_training_ends_after_as_many_samples_as_flagperfs_and_hopper_after_no_more(tmp_path: Path) -> None:
    theirs, compared = published.catalog(tmp_path), []
    for vendor, one in published.cases(theirs):
        if CATALOG.unsupported(
            CATALOG.suite(one.model, one.framework), CATALOG.vendor(vendor), one.hardware, one.shape, "reference"
        ):
            continue
        plan, original = plan_of(CATALOG, vendor, one), plan_of(theirs, vendor, one)
        if ends_after(original) > EARLY * ends_after(plan):
            assert (ends_after(plan), per_step(plan)) == (ends_after(original), per_step(original)), one
            compared.append(one)
    assert len(compared) == 30
    for chip, shape in AS_ON_A100:
        plan = plan_of(CATALOG, "nvidia", case("bert", chip, shape))
        on_a100 = plan_of(theirs, "nvidia", case("bert", "A100", shape))
        assert ends_after(plan) < ends_after(on_a100) + per_step(plan), plan.case
    plan = plan_of(CATALOG, "nvidia", case("bert", "A100", "1x8"))
    assert {deviation.reference for deviation in plan.deviations if deviation.key == "max_samples"} == {14_000_000}


@pytest.mark.parametrize(("vendor", "chip", "more"), [("nvidia", "A100", 0.28), ("iluvatar", "BI-V100", 0.067)])
def test_a_missing_limit_is_detected(vendor: str, chip: str, more: float) -> None:
    """The control: without its limit on samples, 1x8 would train 28 % and 7 % more samples."""
    plan = plan_of(CATALOG, vendor, case("bert", chip, "1x8"))
    assert ends_after(plan, limited=False) / ends_after(plan) - 1 == pytest.approx(more, abs=0.005)
