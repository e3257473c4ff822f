"""Checks of WaveGlow: the flow can be inverted, its volume is right, and the loss is a likelihood."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import data
import model
import numpy as np
import torch
from checking import context
from torch import Tensor, nn

TINY = {
    "mels": 3, "hop": 8, "upsample_kernel": 16, "group": 4, "flows": 3, "early_every": 2, "early_size": 2,
    "wavenet_layers": 2, "wavenet_channels": 6,
}  # fmt: skip


def flow() -> Any:
    """Return a small flow whose steps are not those of the initial weights, which change nothing."""
    torch.manual_seed(3)
    network = model.create_model(context("small", **TINY)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def inverted(network: Any, mel: Tensor, noise: Tensor) -> Tensor:
    """Return the audio of noise: the steps backwards."""
    samples = noise.shape[1] * noise.shape[2]
    conditions = network.conditions(mel, samples)
    channels = network.mixings[-1].weight.shape[0]
    rest, audio = noise.split([noise.shape[2] - channels, channels], 2)
    for number in reversed(range(len(network.mixings))):
        kept, changed = audio.chunk(2, 2)
        shift, log_scale = network.wavenets[number](kept, conditions)
        audio = torch.cat([kept, (changed - shift) / log_scale.exp()], 2)
        audio = torch.einsum("ij,ntj->nti", network.mixings[number].weight.inverse(), audio)
        if number and number % network.early_every == 0:
            rest, early = rest.split([rest.shape[2] - network.early_size, network.early_size], 2)
            audio = torch.cat([early, audio], 2)
    return audio.flatten(1)


def check_the_flow_can_be_inverted() -> None:
    network, audio, mel = flow(), torch.randn(2, 32).double(), torch.randn(2, 3, 5).double()
    noise, _ = network(mel, audio)
    assert noise.shape == (2, 8, 4)
    assert torch.allclose(inverted(network, mel, noise), audio, atol=1e-6)
    assert not torch.allclose(inverted(network, mel + 1, noise), audio, atol=1e-2), "the control: another spectrogram"


def check_the_spectrogram_is_stretched_by_the_transposed_convolution() -> None:
    network, mel = flow(), torch.randn(2, 3, 5).double()
    expected = network.upsample(mel)[..., :36].unflatten(2, (-1, 4)).transpose(2, 3).flatten(1, 2).transpose(1, 2)
    assert torch.allclose(network.conditions(mel, 36), expected)
    assert not torch.allclose(network.conditions(mel.roll(1, 2), 36), expected), "the control: other frames"


def check_one_compiled_graph_serves_all_flows() -> None:
    compiled, audio, mel, graphs = flow(), torch.randn(2, 32).double(), torch.randn(2, 3, 5).double(), []
    expected, compile_ = compiled(mel, audio)[0], torch.compile

    def collect(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with mock.patch("torch.compile", lambda function, **_: compile_(function, backend=collect)):
        model.compile_model(context("small", **TINY), compiled)
    assert torch.allclose(compiled(mel, audio)[0], expected)
    assert len(compiled.wavenets) == 3
    assert len(graphs) == 1


def check_the_volume_is_that_of_the_jacobian() -> None:
    network, audio, mel = flow(), torch.randn(1, 16).double(), torch.randn(1, 3, 3).double()
    jacobian = torch.autograd.functional.jacobian(lambda x: network(mel, x[None])[0].flatten(), audio[0])
    _, volume = network(mel, audio)
    assert math.isclose(volume.item(), float(torch.linalg.slogdet(jacobian).logabsdet), rel_tol=1e-5)
    assert abs(volume.item()) > 0.1, "the control: the steps change the volume"


def check_the_loss_trains_all_parameters_once_the_last_convolutions_are_not_0() -> None:
    network, audio, mel = flow(), torch.randn(2, 32).double(), torch.randn(2, 3, 5).double()
    data.calculate_loss(context("small", **TINY), network, data.Prepared(audio, mel)).backward()
    assert [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()] == []


class Identity(nn.Module):
    """A flow that changes nothing but the scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, mel: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - the flow's signature
        return self.scale * audio[:, None], torch.tensor(audio.numel() * math.log(self.scale))


def check_the_loss_is_lowest_for_the_true_scale() -> None:
    """Noise of deviation s has the negative log-likelihood log(s) + 1/2, without the constant."""
    ctx = context("small")
    audio = 0.2 * torch.randn(4, 50_000, generator=torch.Generator().manual_seed(1))
    batch = data.Prepared(audio, torch.zeros(4, 1, 1))
    losses = {scale: float(data.calculate_loss(ctx, Identity(scale), batch)) for scale in (4.0, 5.0, 6.0)}
    assert min(losses, key=losses.__getitem__) == 5.0
    assert abs(losses[5.0] - (math.log(0.2) + 0.5)) < 0.01


def check_the_metric_is_the_mean_over_segments_of_all_batches() -> None:
    ctx = context("small")
    audio = torch.randn(5, 1600, generator=torch.Generator().manual_seed(1))
    batches = [data.Prepared(part, torch.zeros(len(part), 1, 1)) for part in (audio[:3], audio[3:], audio)]
    sums = [data.evaluate_batch(ctx, Identity(1.5), batch) for batch in batches]
    apart, together = (data.summarize(ctx, total.tolist()) for total in (sums[0] + sums[1], sums[2]))
    assert math.isclose(apart["val_loss"], together["val_loss"], rel_tol=1e-5)


def check_training_and_evaluation_have_other_utterances() -> None:
    ctx = context("small")
    parts = [data._source(ctx, training=training).recordings.clips for training in (True, False)]
    assert all(len(part) > 20 for part in parts)
    seen = {recording.tobytes() for recording in parts[0]}
    assert not seen & {recording.tobytes() for recording in parts[1]}


def check_the_control_trains_on_noise_as_loud_and_evaluates_speech() -> None:
    honest, control = (data.create_train_data(context("small", shuffle_labels=on)) for on in (False, True))
    speech, noise = (next(iter(loader)).audio for loader in (honest, control))
    assert 0.7 < noise.std() / speech.std() < 1.4

    def flatness(audio: Any) -> float:
        power = np.abs(np.fft.rfft(audio)) ** 2
        return float(np.exp(np.log(power + 1e-9).mean()) / power.mean())

    assert flatness(noise) > 0.4 > 0.2 > flatness(speech)
    evaluations = [next(iter(data.create_eval_data(context("small", shuffle_labels=on)))) for on in (False, True)]
    assert np.array_equal(evaluations[0].audio, evaluations[1].audio)


def check_evaluation_segments_do_not_depend_on_the_seed() -> None:
    one, other = (next(iter(data.create_eval_data(context("small", seed=seed)))).audio for seed in (1, 2))
    assert np.array_equal(one, other)
