"""A training without a framework whose ranks wait for each other, by the loop and the checkpoints of all suites.

It is a linear regression with dropout: the same on every machine, bit for bit, if and only if data order, weights and
each rank's own random state continue exactly.
"""

import contextlib
import hashlib
import json
import math
import operator
import os
import random
import time
from pathlib import Path

from flagperf_driver import driver, heartbeat
from flagperf_driver.training.checks import replicas
from flagperf_driver.training.meeting import meet
from flagperf_driver.training.progress import TrainingProgress
from flagperf_driver.training.replay import training_of
from flagperf_driver.training.timeline import HostMarks
from flagperf_driver.training.trainer import RankEvaluation, WeightChange

SAMPLES, EVALUATED, WIDTH = 240, 48, 6


class Trainer:
    """All weights on every rank; the gradients meet at rank 0."""

    compiles, step_bytes = False, None

    def __init__(self, rank, meeting):
        self.rank, self.world, self.config = rank.world.rank, rank.world.world_size, rank.config
        self.progress, self.marks, self.learning_rate = TrainingProgress(), HostMarks(), 0.0
        self.seed, self.gather = rank.case.seed, meeting.gather
        self.weights = [0.0] * WIDTH
        self.random = random.Random(f"{self.seed} dropout {self.rank}")
        self.kept_losses = []
        self.repeater, self.noise = self, None
        self.random_when_it_begins = None
        self.weights_digests = lambda: {replicas.WHOLE: hashlib.sha256(repr(self.weights).encode()).hexdigest()}
        self.progress.steps_per_epoch = SAMPLES // self.world // self.config.train_batch_size

    def describe(self):
        return {
            "device": "none", "framework_version": "1", "world_size": self.world, "parameters": WIDTH,
            "optimizer": "sgd", "precision": "fp32", "any_ranks": False,
        }  # fmt: skip

    def sample(self, number):
        drawn = random.Random(f"{self.seed} sample {number}")
        values = [drawn.gauss(0.0, 1.0) for _ in range(WIDTH)]
        return values, math.fsum(value * (place - 2) for place, value in enumerate(values))

    def epoch(self, number, start):
        if self.random_when_it_begins:
            self.random.setstate(self.random_when_it_begins)
            self.random_when_it_begins = None
        order = list(range(SAMPLES))
        random.Random(f"{self.seed} epoch {number}").shuffle(order)
        share, size = order[self.rank :: self.world], self.config.train_batch_size
        batches = [share[at : at + size] for at in range(0, len(share) - size + 1, size)]
        return iter(batches[start:])

    def step(self, first, more, timeline):
        timeline.begin()
        timeline.begin_backward()
        time.sleep(self.config.step_s)
        gradient, loss = [0.0] * WIDTH, 0.0
        for number in first:
            values, expected = self.sample(number)
            kept = [value * (self.random.random() < 0.9) for value in values]
            error = math.fsum(map(operator.mul, self.weights, kept)) - expected
            error *= 1 + self.noise.uniform(-1e-15, 1e-15) if self.noise else 1
            loss += error * error / len(first)
            gradient = [sum_ + 2.0 * error * value / len(first) for sum_, value in zip(gradient, kept, strict=True)]
        self.learning_rate = self.config.learning_rate
        for place, of_ranks in enumerate(zip(*self.gather(gradient), strict=True)):
            self.weights[place] -= self.learning_rate * math.fsum(of_ranks) / self.world
        self.kept_losses.append(loss)
        timeline.end()
        return len(first)

    def losses(self, steps):
        losses, self.kept_losses = self.kept_losses[-steps:], []
        return losses

    def step_figures(self):
        return {}

    def changed_at_rest(self):
        return None

    def evaluate(self, beat):
        error, total, numbers = 0.0, 0.0, range(SAMPLES + self.rank, SAMPLES + EVALUATED, self.world)
        for number in numbers:
            values, expected = self.sample(number)
            error += (math.fsum(map(operator.mul, self.weights, values)) - expected) ** 2
            total += expected * expected
            beat()
        time.sleep(self.config.step_s / 5)
        return RankEvaluation([error, total], [], len(numbers))

    def summarize(self, results):
        return {"accuracy": max(0.0, 1.0 - results[0] / results[1])}

    def total(self, values):
        return [math.fsum(of_ranks) for of_ranks in zip(*self.gather(list(map(float, values))), strict=True)]

    def synchronize(self):
        pass

    def peak_memory(self):
        return None

    def profiler(self):
        return None

    def threads(self):
        return 1

    def copy_state(self):
        damage = 1.01 if self.config.fault == "damage" else 1.0
        random_state = self.random_when_it_begins or self.random.getstate()
        state = {"weights": [weight * damage for weight in self.weights], "random": self.gather(random_state)}

        def write(folder):
            if self.rank == 0:
                time.sleep(self.config.step_s)  # so that a fault may fall into it
                with (folder / "state.json").open("w") as stream:
                    json.dump(state, stream)
                    stream.flush()
                    os.fsync(stream.fileno())

        return write

    def stored(self, folder):
        return json.loads(Path(folder, "state.json").read_text())

    def load_state(self, folder):
        state = self.stored(folder)
        version, numbers, gauss = state["random"][self.rank]
        self.weights, self.random_when_it_begins = state["weights"], (version, tuple(numbers), gauss)

    # What repeats a segment.

    def repeat_from(self, folder, steps):
        self.load_state(folder)

    def copied_weights(self):
        return list(self.weights)

    def weight_changes(self, before, after):
        if self.rank == 0:
            first, last = (one if isinstance(one, list) else self.stored(one)["weights"] for one in (before, after))
            for name, (own, begin, end) in enumerate(zip(self.weights, first, last, strict=True)):
                change, theirs = own - begin, end - begin
                sums = own * own, change * change, theirs * theirs, change * theirs, (own - end) ** 2
                yield WeightChange(f"weight {name}", own == end, *sums)

    @contextlib.contextmanager
    def rounding(self):
        self.noise = random.Random(0)
        yield
        self.noise = None


def main(rank):
    rank.heartbeat.beat(0, heartbeat.INIT)
    with meet(rank) as meeting:
        trainer = Trainer(rank, meeting)
        training_of(rank, trainer).run()
        meeting.gather(None)  # no rank ends before all are done
    rank.heartbeat.beat(trainer.progress.step, heartbeat.DONE)


driver.run(main)
