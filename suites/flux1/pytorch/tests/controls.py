"""Checks of the small scale's controls: trainings without learning and with the texts of others miss both targets."""

from __future__ import annotations

import tomllib

import checking

from tests.suites import trials

SCALE = tomllib.loads((checking.SUITE / "suite.toml").read_text())["scales"]["small"]


def check_a_rate_of_0_misses_both_targets() -> None:
    _misses(max_steps=3, eval_steps=3, learning_rate=0.0)


def check_shuffled_labels_miss_both_targets() -> None:
    steps = checking.context().config.max_steps
    _misses(max_steps=steps, eval_steps=steps, shuffle_labels=True)


def _misses(**settings: object) -> None:
    trained = trials.train(checking.SUITE, checking.SCRATCH, scale="small", eval_samples=None, **settings)
    assert trained.metrics["validation_loss"] > SCALE["target"], trained.metrics
    assert trained.metrics["misread_drawings"] > 2 * SCALE["also"]["misread_drawings"], "drawings show any digit"
