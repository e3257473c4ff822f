"""Learning-rate schedules: every step has its share of the learning rate, for the recipes of all models."""

import math
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagperf_driver import options
from flagperf_driver.training.schedules import KINDS, ScheduleError, factor, problems

REPO = Path(__file__).resolve().parents[3]
DEFAULTS = options.values("pytorch")


def config(suite: str = "", scale: str = "reference", **settings: Any) -> Any:
    values = dict(DEFAULTS)
    if suite:
        for name in ("_base.py", *([] if scale == "reference" else [f"_{scale}.py"])):
            values.update(runpy.run_path(str(REPO / "suites" / suite / "pytorch/config" / name)))
    return SimpleNamespace(**{**values, **settings})


def shares(settings: Any, *steps: int, per_epoch: int | None = None) -> list[float]:
    share = factor(settings, per_epoch)
    return [share(step) for step in steps]


@pytest.mark.parametrize("step", [1, 7, 15, 16, 17, 30, 31, 60, 61, 100, 149, 150, 151])
def test_shares_without_a_floor_equal_the_published_formulas_bit_for_bit(step: int) -> None:
    """The floor and the start of the warm-up must not change a rounding of BERT's and ResNet50's curves."""
    warm = step / 15
    progress = min(1.0, (step - 1 - 15) / (150 - 15))
    linear, cosine = 1.0 - progress, 0.5 * (1.0 + math.cos(math.pi * progress))
    bert = config("bert", lr_decay=150)
    assert bert.lr_warmup == 15
    assert shares(bert, step) == [warm if step <= 15 else linear]
    assert shares(config("resnet50", "small"), step) == [warm if step <= 15 else cosine]
    assert shares(config("resnet50"), step, per_epoch=1) == [0.1 ** ((step - 1) // 30)]
    if 16 < step <= 150:
        assert shares(config("bert", lr_decay=150, lr_floor=1e-9), step) != [linear], "the control must differ"


def test_each_schedule_follows_its_warm_up_and_keeps_its_floor() -> None:
    """As Vision Transformers are trained: 20 of 300 epochs of warm-up from a thousandth, down to a hundredth."""
    settings = config(
        lr_schedule="cosine", lr_unit="epochs", lr_warmup=20, lr_warmup_from=1e-3, lr_floor=1e-2, max_epochs=300
    )
    rates = shares(settings, 1, 1000, 2000, 2001, 16001, 30001, 40000, per_epoch=100)
    half = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi / 2))
    assert rates == pytest.approx([0.001 + 0.999 / 2000, 0.001 + 0.999 / 2, 1, 1, half, 0.01, 0.01])
    # As detectors are trained.
    settings = config(
        lr_schedule="milestones", lr_unit="epochs", lr_milestones=[[16, 0.1], [22, 0.01]],
        lr_warmup=1000, lr_warmup_unit="steps", lr_warmup_from=0.001,
    )  # fmt: skip
    rates = shares(settings, 500, 1000, 1001, 16000, 16001, 22000, 22001, per_epoch=1000)
    assert rates == pytest.approx([0.001 + 0.999 / 2, 1, 1, 1, 0.1, 0.1, 0.01])
    settings = config(lr_schedule="inverse_sqrt", lr_warmup=4000)
    assert shares(settings, 2000, 4000, 16000, 100 * 4000) == pytest.approx([0.5, 1, 0.5, 0.1])
    settings = config(lr_schedule="step", lr_unit="epochs", lr_step=1, lr_gamma=0.98, lr_floor=0.5)
    assert shares(settings, 1, 10, 11, 21, 9999, per_epoch=10) == pytest.approx([1, 1, 0.98, 0.98**2, 0.5])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr_schedule": "cosin"}, ["'cosin'", ", ".join(KINDS)]),
        ({"lr_schedule": "linear", "max_steps": None}, ["lr_decay, max_steps or max_epochs"]),
        ({"lr_schedule": "step"}, ["lr_step"]),
        ({"lr_schedule": "inverse_sqrt"}, ["lr_warmup"]),
        ({"lr_schedule": "milestones"}, ["lr_milestones is None", "[[30, 0.1], [60, 0.01]]"]),
        ({"lr_schedule": "milestones", "lr_milestones": [[20, 0.1], [10, 0.01]]}, ["rising times"]),
        ({"lr_schedule": "milestones", "lr_milestones": [[20, "a tenth"]]}, ["'a tenth'"]),
        ({"lr_schedule": "milestones", "lr_milestones": [[2.5, 0.1]]}, ["[[2.5, 0.1]]", "whole ones"]),
        ({"lr_milestones": [[20, 0.1]]}, ["lr_schedule='constant'", "set lr_schedule = 'milestones'"]),
        ({"lr_warmup": -1}, ["lr_warmup is -1", "at least 0"]),
        ({"lr_schedule": "step", "lr_step": 0.3}, ["lr_step is 0.3", "whole number of steps"]),
        ({"lr_schedule": "linear", "lr_warmup": 50, "lr_decay": 50}, ["lr_decay is 50", "lr_warmup, 50"]),
        ({"lr_floor": 1.5}, ["lr_floor is 1.5", "0 to 1"]),
        ({"lr_warmup_from": -0.1}, ["lr_warmup_from is -0.1"]),
    ],
)
def test_a_wrong_schedule_is_refused(settings: dict[str, Any], words: list[str]) -> None:
    assert problems(config()) == []
    with pytest.raises(ScheduleError) as error:
        factor(config(**settings))
    assert [word for word in words if word not in str(error.value)] == []


def test_epochs_need_data_of_known_length() -> None:
    settings = config(lr_schedule="step", lr_unit="epochs", lr_step=1)
    assert problems(config(lr_schedule="step", lr_unit="epochs", lr_step=0.3)) == []
    assert shares(settings, 1, per_epoch=7) == [1]
    with pytest.raises(ScheduleError, match="give them __len__, or set lr_unit = 'steps'"):
        factor(settings)
