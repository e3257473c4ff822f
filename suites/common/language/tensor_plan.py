"""How the layers of a decoder are divided over the ranks of a tensor group, which read the same samples.

Attention and feed-forward layers are divided by heads and by columns. Between them each rank has a part of the
sequence, so that norms and sums are divided too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

SEQUENCE = Shard(1)
"""A part of each sequence; tensors are (sequences, tokens, width)."""


def tensor_plan() -> dict[str, ParallelStyle]:
    """Return the style of each module of a decoder; ``*`` is the number of a block."""
    whole = Replicate()
    block = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(SEQUENCE, None, None), desired_input_layouts=(whole, None, None)
        ),
        **{f"attention.{name}": ColwiseParallel() for name in ("q", "k", "v")},
        "attention.out": RowwiseParallel(output_layouts=SEQUENCE),
        "norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(SEQUENCE,), desired_input_layouts=(whole,)),
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")},
        "feed_forward.down": RowwiseParallel(output_layouts=SEQUENCE),
    }
    return {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=SEQUENCE),
        **{f"blocks.*.{name}": style for name, style in block.items()},
        "norm": _NormThenGather(),
        "head": ColwiseParallel(output_layouts=whole),
    }


def mixture_plan() -> dict[str, ParallelStyle]:
    """Return the style of each module of a decoder with experts, but of the experts, whose ranks exchange tokens.

    Each rank routes the tokens of its part of the sequence.
    """
    plan = {name: style for name, style in tensor_plan().items() if "feed_forward" not in name}
    part = {"input_layouts": (SEQUENCE,), "desired_input_layouts": (SEQUENCE,), "use_local_output": True}
    return {
        **plan,
        "blocks.*.attention": _SinksByHead(
            input_layouts=(SEQUENCE, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "blocks.*.mixture": _PartOfTokens(**part),
        "blocks.*.mixture.router": SequenceParallel(sequence_dim=0, use_local_output=True),
    }


class _SinksByHead(PrepareModuleInput):  # type: ignore[misc, unused-ignore]
    """Attention to the whole sequence; a rank has the sinks of its heads."""

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        sinks: Any = distribute_tensor(module.sinks.detach(), device_mesh, [Shard(0)], src_data_rank=None)
        module.register_parameter("sinks", nn.Parameter(sinks))
        return super()._apply(module, device_mesh)


class _PartOfTokens(PrepareModuleInput):  # type: ignore[misc, unused-ignore]
    """A mixture of experts that routes a part of the tokens; the gradients of all parts are added up."""

    def _apply(self, module: Any, device_mesh: Any) -> nn.Module:
        module.parts = device_mesh.size()
        return super()._apply(module, device_mesh)


class _NormThenGather(ParallelStyle):  # type: ignore[misc, unused-ignore]
    """Norm of each rank's part of the sequence; the output is the whole sequence, as a plain tensor."""

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        def divided(module: nn.Module, inputs: tuple[Tensor], mesh: Any) -> DTensor:  # noqa: ARG001
            return DTensor.from_local(inputs[0], mesh, [SEQUENCE], run_check=False)

        def gathered(module: nn.Module, output: DTensor, mesh: Any) -> Tensor:  # noqa: ARG001
            return output.redistribute(mesh, [Replicate()]).to_local()

        return distribute_module(module, device_mesh, None, divided, gathered)
