"""The checks of every training's reference scale, by what the module ``tests/reference.py`` of the suite declares.

The module has ``write(folder)``, which writes tiny data; ``SMALLER``, the config of a model that learns them; ``CUT``,
a file that a check cuts; and ``STEP``, the config of one step of the full model. It may have:

* ``judge(trained)``, further checks of the training on the tiny data;
* ``PARAMETERS``, their published number;
* ``UNTRAINED``, a pattern of the parameters that the step does not change;
* ``FROZEN``, a parameter that the control does not train;
* ``published()``, another library's model with the same names and shapes, and ``OTHER``, a config with other shapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.suites import trials


def check_the_tiny_data_are_read_and_learnt(of: SimpleNamespace) -> None:
    trained = of.tiny.check_learnt(of.tiny.folder("learnt"))
    getattr(of, "judge", lambda _: None)(trained)


def check_a_cut_file_is_named_with_the_fix(of: SimpleNamespace) -> None:
    def cut(path: Path) -> None:
        (path / of.CUT).write_bytes((path / of.CUT).read_bytes()[:900])

    of.tiny.damaged(cut, Path(of.CUT).name, " again")


def check_one_step_trains_all_parameters(of: SimpleNamespace) -> None:
    step, untrained = trials.one_step(of.suite, **of.STEP), re.compile(getattr(of, "UNTRAINED", "(?!)"))
    assert math.isfinite(step.loss)
    assert step.unchanged == {name for name in step.changed | step.unchanged if untrained.match(name)}
    if hasattr(of, "FROZEN"):
        frozen = trials.one_step(of.suite, of.FROZEN, **of.STEP)
        assert step.changed - frozen.changed == {of.FROZEN}, "the control"


def check_the_model_has_the_published_size(of: SimpleNamespace) -> None:
    assert trials.parameters(of.suite) == of.PARAMETERS


def check_the_weights_have_the_published_shapes(of: SimpleNamespace) -> None:
    def shapes(model: Any) -> dict[str, Any]:
        weights = model.state_dict().items()
        return {name: value.shape for name, value in weights if not name.endswith("num_batches_tracked")}

    import torch

    with torch.device("meta"):
        expected = shapes(of.published())
    assert shapes(trials.full_model(of.suite)) == expected
    assert shapes(trials.full_model(of.suite, **of.OTHER)) != expected, "the control"


NEEDS: dict[Callable[[SimpleNamespace], None], str] = {
    check_the_tiny_data_are_read_and_learnt: "SMALLER",
    check_a_cut_file_is_named_with_the_fix: "CUT",
    check_one_step_trains_all_parameters: "STEP",
    check_the_model_has_the_published_size: "PARAMETERS",
    check_the_weights_have_the_published_shapes: "OTHER",
}
"""By check, what the module must have for it."""


def checks(module: Mapping[str, Any], suite: Path, scratch: Path) -> dict[str, Callable[[], None]]:
    """Return by name the checks of what the module has."""
    tiny = trials.TinyData(suite, scratch / "reference", module["SMALLER"], module["write"])
    of = SimpleNamespace(**{**module, "suite": suite, "tiny": tiny})
    return {check.__name__: partial(check, of) for check, name in NEEDS.items() if name in module}
