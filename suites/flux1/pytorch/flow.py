"""Rectified flow: a straight line leads from a picture to noise, and the model learns the velocity on it."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pictures import TIME_STEPS, Batch
from torch import Tensor, nn


def losses(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error of the velocity of each picture, in fp32."""
    times = batch.times[:, None, None, None]
    noised = (1 - times) * batch.latents + times * batch.noise
    velocity = model(noised, batch.times, batch.text, batch.pooled)
    errors = F.mse_loss(velocity.float(), batch.noise - batch.latents, reduction="none")
    return errors.flatten(1).mean(1)


def losses_by_step(model: nn.Module, batch: Batch) -> Tensor:
    """Return the sums of the pictures' losses by their time steps, and the numbers of pictures."""
    steps = (batch.times * TIME_STEPS).round().long()
    of_pictures = losses(model, batch)
    sums = of_pictures.new_zeros(2, TIME_STEPS)
    sums.scatter_add_(1, steps.expand(2, -1), torch.stack((of_pictures, torch.ones_like(of_pictures))))
    return sums.flatten()


def draw(model: nn.Module, noise: Tensor, text: Tensor, pooled: Tensor, steps: int) -> Tensor:
    """Return latents for the texts: follow the velocity from noise in equal steps."""
    latents = noise
    for step in range(steps, 0, -1):
        times = torch.full((len(noise),), step / steps, device=noise.device)
        latents = latents - model(latents, times, text, pooled) / steps
    return latents
