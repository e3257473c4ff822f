"""WaveGlow: invertible steps that turn speech into noise, each conditioned on the speech's mel spectrogram."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from common.speech.networks import Convolution, convolved
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from flagperf_driver.pytorch.steps import compile_methods

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context

Weights = tuple[Tensor, Tensor]
"""Of a convolution, and its bias."""


def create_model(ctx: Context) -> nn.Module:
    """Return the network with random weights."""
    config = ctx.config
    return WaveGlow(
        mels=config.mels,
        upsampling=(config.upsample_kernel, config.hop),
        group=config.group,
        flows=config.flows,
        early=(config.early_every, config.early_size),
        wavenet=(config.wavenet_layers, config.wavenet_channels, config.wavenet_kernel),
    )


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Compile the layers of one flow for all flows: they are nearly all of the work."""
    assert isinstance(model, WaveGlow)
    compile_methods(ctx, model.wavenets, "gated")
    return model


class Mixing(nn.Module):
    """Mixes the channels by an invertible matrix, at first a rotation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        rotation = torch.linalg.qr(torch.randn(channels, channels))[0]
        rotation[:, 0] *= torch.linalg.det(rotation).sign()
        self.weight = nn.Parameter(rotation.contiguous())

    def forward(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mixed channels, and the logarithm of the determinant for one time; in fp32 also under autocast."""
        return nn.functional.linear(audio, self.weight), torch.linalg.slogdet(self.weight).logabsdet


class WaveNet(nn.Module):
    """Gated convolutions over ever longer distances: from half of the channels to a scale and a shift of the others."""

    def __init__(self, channels: int, conditions: int, wavenet: tuple[int, int, int]) -> None:
        super().__init__()
        layers, width, kernel = wavenet
        self.gated = gated
        self.start = weight_norm(Convolution(channels, width, 1))
        self.conditions = weight_norm(Convolution(conditions, 2 * width * layers, 1))
        # Not a ModuleList, whose layers FSDP would shard each for itself: the flow reads all of their weights at once.
        self.gates = nn.Sequential(
            *(
                weight_norm(Convolution(width, 2 * width, kernel, dilation=2**of, padding=(kernel - 1) // 2 * 2**of))
                for of in range(layers)
            )
        )
        self.outputs = nn.Sequential(
            *(weight_norm(Convolution(width, 2 * width if of < layers - 1 else width, 1)) for of in range(layers))
        )
        self.end = Convolution(width, 2 * channels, 1)
        nn.init.zeros_(self.end.weight)  # the first steps change nothing
        nn.init.zeros_(self.end.bias)

    def forward(self, audio: Tensor, conditions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shift and the logarithm of the scale."""
        gates, outputs = ([(one.weight, one.bias) for one in layers] for layers in (self.gates, self.outputs))
        skipped = self.gated(self.start(audio), self.conditions(conditions), gates, outputs)
        shift, log_scale = self.end(skipped).chunk(2, 2)
        return shift, log_scale


def gated(hidden: Tensor, conditions: Tensor, gates: list[Weights], outputs: list[Weights]) -> Tensor:
    """Return the sum of what the layers skip; without a module, so that one compiled function serves all flows."""
    width, skipped = hidden.shape[2], torch.zeros((), dtype=hidden.dtype, device=hidden.device)
    for layer, condition in enumerate(conditions.chunk(len(gates), 2)):
        dilation, kernel = 2**layer, gates[layer][0].shape[2]
        opened = convolved(hidden, *gates[layer], padding=(kernel - 1) // 2 * dilation, dilation=dilation)
        value, opening = (opened + condition).chunk(2, 2)
        result = convolved(value.tanh() * opening.sigmoid(), *outputs[layer])
        if result.shape[2] > width:  # all layers but the last one
            hidden, result = hidden + result[..., :width], result[..., width:]
        skipped = skipped + result
    return skipped


class WaveGlow(nn.Module):
    """The flow from speech to noise, and the logarithm of its change of volume."""

    def __init__(
        self,
        mels: int,
        upsampling: tuple[int, int],
        group: int,
        flows: int,
        early: tuple[int, int],
        wavenet: tuple[int, int, int],
    ) -> None:
        super().__init__()
        self.group, self.early_every, self.early_size = group, *early
        kernel, hop = upsampling
        self.upsample = nn.ConvTranspose1d(mels, mels, kernel, stride=hop)
        channels = [group - flow // self.early_every * self.early_size for flow in range(flows)]
        self.mixings = nn.ModuleList(Mixing(count) for count in channels)
        self.wavenets = nn.ModuleList(WaveNet(count // 2, mels * group, wavenet) for count in channels)

    def forward(self, mel: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
        """Return the noise, (N, time, group), and the sum of the log-determinants over the batch, in fp32."""
        conditions = self.conditions(mel, audio.shape[1])
        audio = audio.unflatten(1, (-1, self.group))
        early, volume = [], torch.zeros((), device=audio.device)
        for flow, (mixing, wavenet) in enumerate(zip(self.mixings, self.wavenets, strict=True)):
            if flow and flow % self.early_every == 0:
                early.append(audio[..., : self.early_size])
                audio = audio[..., self.early_size :]
            audio, determinant = mixing(audio)
            kept, changed = audio.chunk(2, 2)
            shift, log_scale = wavenet(kept, conditions)
            audio = torch.cat([kept, changed * log_scale.exp() + shift], 2)
            volume = volume + determinant * len(audio) * audio.shape[1] + log_scale.float().sum()
        return torch.cat([*early, audio], 2), volume

    def conditions(self, mel: Tensor, samples: int) -> Tensor:
        """Return the spectrogram at each group of samples, (N, time, mels * group).

        Each frame and those before it that reach into it give the ``hop`` samples of the frame: a matrix product.
        """
        (hop,), (kernel,) = self.upsample.stride, self.upsample.kernel_size
        reach = kernel // hop
        windows = nn.functional.pad(mel, (reach - 1, 0)).transpose(1, 2).unfold(1, reach, 1).flatten(2)
        weight = self.upsample.weight.unflatten(2, (reach, hop)).flip(2).permute(3, 1, 0, 2).flatten(0, 1).flatten(1)
        stretched = nn.functional.linear(windows, weight, self.upsample.bias.repeat(hop))
        grouped = stretched.unflatten(2, (hop, -1)).flatten(1, 2)[:, :samples].unflatten(1, (-1, self.group))
        return grouped.transpose(2, 3).flatten(2)
