"""Tacotron 2: reads a text, and speaks it as a mel spectrogram, frame by frame."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from common.speech.networks import BatchNorm, Convolution
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context


def create_model(ctx: Context) -> nn.Module:
    """Return the network with random weights."""
    return Tacotron2(ctx.config)


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Compile some steps of the decoder: all steps of a training together would be too long a graph.

    With CUDA graphs, the memory of a call's outputs is used again when the next step begins. Without the mark, each
    call of an evaluation would be such a step, and the outputs of the calls before it would be lost.
    """
    assert isinstance(model, Tacotron2)
    model.steps.compile(mode=ctx.config.compile_mode)
    if ctx.config.compile_mode != "default":
        model.register_forward_pre_hook(lambda *_: torch.compiler.cudagraph_mark_step_begin())
    return model


class Spoken(NamedTuple):
    """What the network says, with teacher forcing."""

    frames: Tensor
    """(N, mels, frames): the decoder's spectrogram."""
    refined: Tensor
    """The spectrogram after the postnet."""
    ends: Tensor
    """(N, steps): logits; positive where the speech has ended."""
    attention: Tensor
    """(N, steps, symbols): the part of each symbol in each step."""


class State(NamedTuple):
    """What a step of the decoder keeps for the next one."""

    attention_hidden: Tensor
    attention_cell: Tensor
    hidden: Tensor
    cell: Tensor
    weights: Tensor
    """(N, symbols): the attention of this step."""
    total: Tensor
    """(N, symbols): the attention of all steps so far."""
    context: Tensor
    """(N, channels): what the attention reads."""


class Tacotron2(nn.Module):
    """The whole network. ``config`` has the sizes."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.frames_per_step, self.together = config.frames_per_step, config.compiled_steps
        mels, channels, dropout = config.mels, config.encoder_channels, config.dropout
        self.encoder = Encoder(config.symbols, channels, config.encoder_layers, config.encoder_kernel, dropout)
        self.prenet = Prenet(mels * config.frames_per_step, config.prenet_channels, dropout)
        self.keys = linear(channels, config.attention_channels, "tanh", bias=False)
        self.steps = DecoderSteps(config)
        both = config.decoder_channels + channels
        self.frame = linear(both, mels * config.frames_per_step)
        self.end = linear(both, 1, "sigmoid")
        self.postnet = postnet(mels, config.postnet_channels, config.postnet_layers, config.postnet_kernel, dropout)

    def forward(self, text: Tensor, symbols: Tensor, mel: Tensor) -> Spoken:
        """Speak the texts (N, length), of which the first ``symbols`` count, each step after the true frame."""
        padding = torch.arange(text.shape[1], device=text.device) >= symbols[:, None]
        memory = self.encoder(text, symbols, padding)
        heard = self.prenet(self._previous(mel))
        outputs, attention = self._decoded(heard, memory, padding)
        frames = self.frame(outputs).unflatten(2, (self.frames_per_step, -1)).flatten(1, 2)[:, : mel.shape[2]]
        refined = frames + self.postnet(frames)
        return Spoken(frames.transpose(1, 2), refined.transpose(1, 2), self.end(outputs)[..., 0], attention)

    def _previous(self, mel: Tensor) -> Tensor:
        """Return the frames before each step, (steps, N, mels * frames_per_step); silence of zeros at first."""
        steps = math.ceil(mel.shape[2] / self.frames_per_step)
        before = functional.pad(mel, (self.frames_per_step, (steps - 1) * self.frames_per_step - mel.shape[2]))
        return before.transpose(1, 2).unflatten(1, (steps, -1)).flatten(2).transpose(0, 1)

    def _decoded(self, heard: Tensor, memory: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decoder's outputs, (N, steps, channels), and its attention."""
        count, keys = len(heard), self.keys(memory)
        heard = functional.pad(heard, (0, 0, 0, 0, 0, -count % self.together))
        state = self.steps.start(memory)
        outputs, attention = [], []
        for some in heard.split(self.together):
            output, weights, state = self.steps(some, memory, keys, padding, state)
            outputs.append(output)
            attention.append(weights)
        return torch.cat(outputs, 1)[:, :count], torch.cat(attention, 1)[:, :count]


class Encoder(nn.Module):
    """Turns characters into what the attention reads."""

    def __init__(self, symbols: int, channels: int, layers: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, channels)
        bound = math.sqrt(6 / (symbols + channels))
        nn.init.uniform_(self.embedding.weight, -bound, bound)
        self.convolutions = nn.Sequential(
            *(block(channels, channels, kernel, dropout, "relu", nn.ReLU()) for _ in range(layers))
        )
        self.forwards = nn.LSTM(channels, channels // 2, batch_first=True)
        self.backwards = nn.LSTM(channels, channels // 2, batch_first=True)

    def forward(self, text: Tensor, symbols: Tensor, padding: Tensor) -> Tensor:
        """Return (N, length, channels), zero beyond a text's end."""
        features = self.convolutions(self.embedding(text))
        places = torch.arange(text.shape[1], device=text.device)
        mirrored = torch.where(padding, places, symbols[:, None] - 1 - places)[..., None]
        backwards = self.backwards(features.gather(1, mirrored.expand_as(features)))[0]
        backwards = backwards.gather(1, mirrored.expand_as(backwards))
        read = torch.cat([self.forwards(features)[0], backwards], 2)
        return read.masked_fill(padding[..., None], 0)


class Prenet(nn.Module):
    """Narrows a frame. Its dropout is part of the model: evaluation has it too."""

    def __init__(self, frame: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.first = linear(frame, channels, bias=False)
        self.second = linear(channels, channels, bias=False)
        self.dropout = dropout

    def forward(self, frames: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            frames = functional.dropout(layer(frames).relu(), self.dropout, training=True)
        return frames


class DecoderSteps(nn.Module):
    """Some steps of the decoder: attention to the text, and two LSTM cells."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        channels, width, size = config.encoder_channels, config.decoder_channels, config.attention_channels
        self.attention_cell = nn.LSTMCell(config.prenet_channels + channels, width)
        self.query = linear(width, size, "tanh", bias=False)
        self.location = convolution(2, config.location_filters, config.location_kernel, bias=False)
        self.place = linear(config.location_filters, size, "tanh", bias=False)
        self.energy = linear(size, 1, bias=False)
        self.cell = nn.LSTMCell(width + channels, width)
        self.dropout = config.decoder_dropout

    def start(self, memory: Tensor) -> State:
        """Return the state before the first step. It asks for gradients as later states do: one graph serves all."""
        count, length, channels = memory.shape
        sizes = (*4 * [self.cell.hidden_size], length, length, channels)
        return State(*(memory.new_zeros(count, size).requires_grad_(torch.is_grad_enabled()) for size in sizes))

    def forward(
        self, heard: Tensor, memory: Tensor, keys: Tensor, padding: Tensor, state: State
    ) -> tuple[Tensor, Tensor, State]:
        """Return the outputs, (N, steps, channels), the attention, (N, steps, symbols), and the new state."""
        outputs, attention = [], []
        for one in heard.unbind():
            state = self._step(one, memory, keys, padding, state)
            outputs.append(torch.cat([state.hidden, state.context], 1))
            attention.append(state.weights)
        return torch.stack(outputs, 1), torch.stack(attention, 1), state

    def _step(self, heard: Tensor, memory: Tensor, keys: Tensor, padding: Tensor, state: State) -> State:
        query, query_cell = self.attention_cell(
            torch.cat([heard, state.context], 1), (state.attention_hidden, state.attention_cell)
        )
        query = functional.dropout(query, self.dropout, self.training)
        places = self.place(self.location(torch.stack([state.weights, state.total], 2)))
        energies = self.energy((self.query(query)[:, None] + places + keys).tanh())[..., 0]
        weights = energies.float().masked_fill(padding, -math.inf).softmax(1)
        context = torch.bmm(weights[:, None].to(memory.dtype), memory)[:, 0]
        hidden, cell = self.cell(torch.cat([query, context], 1), (state.hidden, state.cell))
        hidden = functional.dropout(hidden, self.dropout, self.training)
        return State(query, query_cell, hidden, cell, weights, state.total + weights, context)


def postnet(mels: int, channels: int, layers: int, kernel: int, dropout: float) -> nn.Sequential:
    """Return convolutions that correct the spectrogram, with the frames before and after each one in view."""
    sizes = [mels, *(layers - 1) * [channels], mels]
    kinds: list[tuple[str, nn.Module]] = [*(layers - 1) * [("tanh", nn.Tanh())], ("linear", nn.Identity())]
    return nn.Sequential(
        *(
            block(before, after, kernel, dropout, gain, activation)
            for (before, after), (gain, activation) in zip(pairwise(sizes), kinds, strict=True)
        )
    )


def block(before: int, after: int, kernel: int, dropout: float, gain: str, activation: nn.Module) -> nn.Sequential:
    """Return a convolution with batch normalization, an activation and dropout."""
    return nn.Sequential(convolution(before, after, kernel, gain), BatchNorm(after), activation, nn.Dropout(dropout))


def linear(before: int, after: int, gain: str = "linear", *, bias: bool = True) -> nn.Linear:
    """Return a linear layer with Xavier's initial weights."""
    layer = nn.Linear(before, after, bias=bias)
    nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain(gain))
    return layer


def convolution(before: int, after: int, kernel: int, gain: str = "linear", *, bias: bool = True) -> Convolution:
    """Return a convolution over the length with Xavier's initial weights."""
    layer = Convolution(before, after, kernel, padding=kernel // 2, bias=bias)
    nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain(gain))
    return layer
