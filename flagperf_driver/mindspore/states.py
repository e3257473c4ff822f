"""The state of a training in MindSpore: weights, optimizer and loss scale."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import mindspore as ms
from mindspore import nn, ops

from flagperf_driver.mindspore.optimizers import MindSporeOptimizer
from flagperf_driver.training.base import Arrays

_STATISTICS = ("moving_mean", "moving_variance")


class MindSporeStates:
    """The values of a training that a checkpoint keeps.

    MindSpore can neither save nor set the states of its random generators: a resumed training draws other masks of
    dropout.
    """

    def __init__(self, model: nn.Cell, optimizer: MindSporeOptimizer, scale: ms.Parameter) -> None:
        self._model, self._optimizer, self._scale = model, optimizer, scale

    def weights(self) -> Arrays:
        return {weight.name: _array(weight) for weight in self._model.trainable_params()}

    def arrays(self) -> Arrays:
        return {name: _array(parameter) for name, parameter in self._named()}

    def set_arrays(self, arrays: Mapping[str, Any]) -> None:
        for name, parameter in self._named():
            _set(parameter, arrays[name])

    def _named(self) -> Iterator[tuple[str, ms.Parameter]]:
        for parameter in self._model.get_parameters():
            yield f"model/{parameter.name}", parameter
        optimizer = self._optimizer
        for parameter in (optimizer.steps, *optimizer.means, *optimizer.squares, self._scale):
            yield parameter.name, parameter

    def statistics(self) -> Arrays:
        return {parameter.name: _array(parameter) for parameter in self._kept()}

    def set_statistics(self, arrays: Mapping[str, Any]) -> None:
        for parameter in self._kept():
            _set(parameter, arrays[parameter.name])

    def _kept(self) -> list[ms.Parameter]:
        return [one for one in self._model.get_parameters() if one.name.rpartition(".")[2] in _STATISTICS]


def _set(parameter: ms.Parameter, value: Any) -> None:
    """Change the value in place: ``set_data`` would give the parameter other memory than the compiled graphs use."""
    ops.assign(parameter, ms.Tensor(value, parameter.dtype))


def _array(parameter: ms.Parameter) -> Any:
    return parameter.asnumpy().copy()
