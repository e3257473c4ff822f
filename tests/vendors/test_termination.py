"""A training ends after as many samples as FlagPerf's config of the same case allows (tests/flagperf).

Configs there that end a throughput measurement early are left out: our configs limit the steps of such measurements
instead, and can train to the target.
"""

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.plan import Plan, PlanRequest, make_plan
from tests.helpers import published
from tests.helpers.published import case

OURS = Catalog.scan([published.REPO])
IMAGES = 1_281_167
"""An epoch of ImageNet."""
EARLY = 0.1
"""The share of our samples before which a config of FlagPerf only measures the throughput."""
AS_ON_A100 = [(chip, shape) for chip in ("H100", "H200") for shape in ("1x1", "1x8", "2x8")]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return published.catalog(tmp_path_factory.mktemp("published"))


def planned(catalog: Catalog, vendor: str, one: Case) -> Plan:
    return make_plan(catalog, PlanRequest(one, vendor=vendor, scale="reference", data_dir="/data", check_data=False))


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


def test_a_training_ends_after_as_many_samples_as_flagperfs_and_hopper_after_no_more(theirs: Catalog) -> None:
    compared = []
    for vendor, one in published.cases(theirs):
        if OURS.unsupported(
            OURS.suite(one.model, one.framework), OURS.vendor(vendor), one.hardware, one.shape, "reference"
        ):
            continue
        plan, original = planned(OURS, vendor, one), planned(theirs, vendor, one)
        if ends_after(original) > EARLY * ends_after(plan):
            assert (ends_after(plan), per_step(plan)) == (ends_after(original), per_step(original)), one
            compared.append(one)
    assert len(compared) == 30
    for chip, shape in AS_ON_A100:
        plan = planned(OURS, "nvidia", case("bert", chip, shape))
        on_a100 = planned(theirs, "nvidia", case("bert", "A100", shape))
        assert ends_after(plan) < ends_after(on_a100) + per_step(plan), plan.case
    plan = planned(OURS, "nvidia", case("bert", "A100", "1x8"))
    assert {deviation.reference for deviation in plan.deviations if deviation.key == "max_samples"} == {14_000_000}


@pytest.mark.parametrize(("vendor", "chip", "more"), [("nvidia", "A100", 0.28), ("iluvatar", "BI-V100", 0.067)])
def test_a_missing_limit_is_detected(vendor: str, chip: str, more: float) -> None:
    """The control: without its limit on samples, 1x8 would train 28 % and 7 % more samples."""
    plan = planned(OURS, vendor, case("bert", chip, "1x8"))
    assert ends_after(plan, limited=False) / ends_after(plan) - 1 == pytest.approx(more, abs=0.005)
