"""Checks of the training's task: noise, times and dropped texts; the evaluation by time step; drawings; the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import checking
import digit_drawings
import flow
import numpy as np
import steps
import torch
from common.shares import Draw
from digit_drawings import DigitPictures, Drawing, judge
from pictures import TIME_STEPS, Batch, Samples
from torch import Tensor, nn

CONFIG = checking.context().config
Velocity = Callable[[Tensor, Tensor], Tensor]


class Known(nn.Module):
    """A model with a known velocity."""

    def __init__(self, velocity: Velocity) -> None:
        super().__init__()
        self.velocity, self.times = velocity, list[Tensor]()

    def forward(self, latents: Tensor, times: Tensor, text: Tensor, pooled: Tensor) -> Tensor:  # noqa: ARG002
        self.times.append(times)
        return self.velocity(latents, times)


def samples(*, training: bool, count: int = 512, epoch: int = 0, **changes: Any) -> Batch:
    source = Samples(DigitPictures(CONFIG, training=training), CONFIG, 42 if training else None, **changes)
    return source[Draw(epoch, np.arange(count))]


# -- what a training sees


def check_times_are_uniform_and_noise_is_normal() -> None:
    batch = samples(training=True, count=1437)
    counts = torch.histc(batch.times, 8, 0, 1) / len(batch.times)
    assert (counts - 1 / 8).abs().max() < 0.03, "uniform; a logit-normal time has 0.06 and 0.19"
    assert batch.times.min() >= 0
    assert batch.times.max() < 1
    assert abs(batch.noise.mean()) < 0.02
    assert abs(batch.noise.std() - 1) < 0.02


def check_both_texts_are_dropped_together_one_time_in_ten() -> None:
    album = DigitPictures(CONFIG, training=True)
    batch, empty = samples(training=True, count=1437), album.empty
    text = (batch.text == torch.from_numpy(empty.text)).all(-1).all(-1)
    pooled = (batch.pooled == torch.from_numpy(empty.pooled)).all(-1)
    assert torch.equal(text, pooled)
    assert 0.07 < text.float().mean() < 0.13
    evaluation = samples(training=False, count=360)
    assert not (evaluation.pooled == torch.from_numpy(empty.pooled)).all(-1).any(), "the control"


def check_a_sample_depends_on_the_seed_the_epoch_and_its_number_alone() -> None:
    source = Samples(DigitPictures(CONFIG, training=True), CONFIG, 42)
    whole, part = source[Draw(3, np.array([5, 6, 7]))], source[Draw(3, np.array([7]))]
    assert all(torch.equal(of_whole[2:], of_part) for of_whole, of_part in zip(whole, part, strict=True))
    other_epoch = source[Draw(4, np.array([7]))]
    assert not torch.equal(other_epoch.noise, part.noise)
    other_seed = Samples(DigitPictures(CONFIG, training=True), CONFIG, 43)[Draw(3, np.array([7]))]
    assert not torch.equal(other_seed.noise, part.noise)


def check_a_latent_is_drawn_from_mean_and_deviation_and_scaled() -> None:
    class Encoded(DigitPictures):
        def __getitem__(self, number: int) -> Any:
            return super().__getitem__(number)._replace(mean=np.full((1, 32, 32), 3.0), deviation=0.5)

    config = checking.context(latent_shift=1.0, latent_scale=2.0).config
    batch = Samples(Encoded(CONFIG, training=True), config, 42)[Draw(0, np.arange(8))]
    assert abs(batch.latents.mean() - (3 - 1) * 2) < 0.1
    assert abs(batch.latents.std() - 0.5 * 2) < 0.05
    assert abs(torch.corrcoef(torch.stack((batch.latents.flatten(), batch.noise.flatten())))[0, 1]) < 0.05


def check_the_loss_is_that_of_noise_minus_latents() -> None:
    batch = samples(training=True, count=64)
    right = Known(lambda latents, times: batch.noise - batch.latents)  # noqa: ARG005 - as the model
    assert steps.calculate_loss(checking.context(), right, batch) == 0
    wrong = Known(lambda latents, times: batch.latents - batch.noise)  # noqa: ARG005
    assert steps.calculate_loss(checking.context(), wrong, batch) > 1

    def from_the_line(latents: Tensor, times: Tensor) -> Tensor:
        """Return the velocity by the place on the line, which must be (1 - t) latents + t noise."""
        return (latents - batch.latents) / times[:, None, None, None]

    errors = flow.losses(Known(from_the_line), batch)
    assert errors[batch.times > 0.1].max() < 1e-6


# -- the evaluation


def check_the_evaluation_is_the_mean_of_eight_means() -> None:
    ctx = checking.context(drawings=0)
    batch = samples(training=False, count=45)  # 6 of the first five steps, 5 of the others
    model = Known(lambda latents, times: times[:, None, None, None].expand_as(latents))
    losses = flow.losses(model, batch)
    sums = steps.evaluate_batch(ctx, model, batch).double().tolist()
    assert sums[TIME_STEPS : 2 * TIME_STEPS] == [6.0] * 5 + [5.0] * 3
    expected = sum(losses[step::TIME_STEPS].double().mean().item() for step in range(TIME_STEPS)) / TIME_STEPS
    got = steps.summarize(ctx, sums)
    assert got.keys() == {"validation_loss"}, "without drawings"
    assert abs(got["validation_loss"] - expected) < 1e-6
    assert abs(losses.double().mean().item() - expected) > 1e-6, "the control: the mean of all is another number"
    assert {float(time) for time in model.times[0]} == {step / 8 for step in range(8)}


def check_an_evaluation_without_a_time_step_is_refused() -> None:
    sums = [1.0] * 3 + [0.0] + [1.0] * 4
    checking.raises(ValueError, lambda: steps.summarize(checking.context(drawings=0), [*sums, *sums]), "time step 3")


def check_any_shape_and_batch_evaluates_the_same() -> None:
    """The noise belongs to the picture: neither ranks nor batch sizes nor the round's seed change the metric."""
    model = Known(lambda latents, times: latents * times[:, None, None, None])

    def metric(ranks: int, size: int, seed: int = 42) -> dict[str, Any]:
        sums = torch.zeros(2 * TIME_STEPS + 2 + 20 * 64, dtype=torch.float64)
        for rank in range(ranks):
            ctx = checking.context(rank=rank, world_size=ranks, eval_batch_size=size, drawings=30, seed=seed)
            for batch in steps.create_eval_data(ctx):
                sums += steps.evaluate_batch(ctx, model, batch).double()
        return dict(steps.summarize(ctx, sums.tolist()))

    alone = metric(1, 200)
    for other in (metric(2, 200), metric(3, 7), metric(1, 200, seed=43)):
        assert all(other[name] == alone[name] for name in ("misread_drawings", "digits_0_to_9"))
        assert abs(other["validation_loss"] - alone["validation_loss"]) < 1e-6
    model = Known(lambda latents, times: 1.01 * latents * times[:, None, None, None])
    assert abs(metric(1, 200)["validation_loss"] - alone["validation_loss"]) > 1e-4, "the control"


# -- drawings


def check_drawing_follows_the_velocity_from_noise() -> None:
    noise, target = torch.randn(4, 1, 8, 8), torch.full((4, 1, 8, 8), 0.5)
    text, pooled = torch.zeros(4, 4, 32), torch.zeros(4, 16)
    # The exact velocity at a point of the line: (point - target) / time.
    exact = Known(lambda latents, times: (latents - target) / times[:, None, None, None])
    assert torch.allclose(flow.draw(exact, noise, text, pooled, 8), target, atol=1e-5)
    assert [float(times[0]) for times in exact.times] == [step / 8 for step in range(8, 0, -1)]
    reversed_flow = Known(lambda latents, times: (target - latents) / times[:, None, None, None])
    assert not torch.allclose(flow.draw(reversed_flow, noise, text, pooled, 8), target, atol=0.5), "the control"


def check_the_judge_knows_digits_and_not_noise() -> None:
    pixels, classes = digit_drawings._pixels(training=False)
    right = judge().classes(torch.from_numpy(pixels)) == torch.from_numpy(classes)
    assert right.float().mean() > 0.97
    noise = torch.randn(360, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    assert (judge().classes(noise) == torch.from_numpy(classes)).float().mean() < 0.2, "the control"


def check_real_digits_as_drawings_are_found_and_others_missed() -> None:
    pixels, classes = digit_drawings._pixels(training=False)
    ctx, still = checking.context(), Known(lambda latents, times: torch.zeros_like(latents))  # noqa: ARG005
    text, pooled = torch.zeros(360, 4, 32), torch.zeros(360, 16)

    def misread(wanted: Any) -> float:
        drawing = Drawing(torch.from_numpy(pixels), text, pooled, torch.from_numpy(wanted), torch.arange(360))
        right, count, *shown = steps.evaluate_batch(ctx, still, drawing)[2 * TIME_STEPS :].tolist()
        assert count == 360
        assert shown == pixels[:20].flatten().tolist(), "the first drawings are shown"
        return 1 - right / count

    assert misread(classes) < 0.03
    assert misread((classes + 1) % 10) > 0.9


def check_the_page_gets_the_first_drawings() -> None:
    shown = torch.linspace(-1, 1, 20 * 64).tolist()
    drawn: Any = steps.summarize(checking.context(), [*[1.0] * (2 * TIME_STEPS + 2), *shown])["digits_0_to_9"]
    assert (drawn.rows, drawn.columns) == (8, 8)
    assert list(drawn.pixels) == [round(127.5 * (value + 1)) for value in shown]


def check_the_evaluation_wants_each_class_equally() -> None:
    ctx = checking.context(eval_batch_size=50)
    batches = list(steps.create_eval_data(ctx))
    drawings = [batch for batch in batches if isinstance(batch, Drawing)]
    assert sum(steps.count_samples(ctx, batch) for batch in batches) == 360 + 200
    assert torch.bincount(torch.cat([batch.classes for batch in drawings])).tolist() == [20] * 10
    texts = DigitPictures(CONFIG, training=False).texts
    for batch in drawings:
        expected = np.stack([texts[number].pooled for number in batch.classes])
        assert torch.equal(batch.pooled, torch.from_numpy(expected))


# -- controls of a training


def check_shuffled_labels_are_those_of_other_pictures() -> None:
    plain, shuffled = samples(training=True), samples(training=True, shuffle_seed=42)
    assert torch.equal(plain.noise, shuffled.noise)
    same = (plain.pooled == shuffled.pooled).all(-1).float().mean()
    assert 0.1 < same < 0.3, "a tenth has the same class, another tenth no text"
