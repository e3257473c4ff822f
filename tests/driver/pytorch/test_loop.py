"""The loop on one rank: what it tells, when it evaluates, why it stops."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tests.driver.pytorch.conftest import Found

pytestmark = pytest.mark.slow


def far(left: list[float], right: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(left, right, strict=True))


def test_the_events_come_in_their_order(alone: Found) -> None:
    assert alone["strong"].names == [
        "INIT_END", "INIT_EVALUATION", "TRAIN_START", "EPOCH_BEGIN", "STEP_BEGIN", "STEP_END", "STEP_END",
        "EVALUATE", "STEP_BEGIN", "STEP_END", "EPOCH_END", "EPOCH_BEGIN", "STEP_END", "EVALUATE", "TRAIN_END",
        "FINISHED",
    ]  # fmt: skip


def test_it_learns_and_says_how_far_it_is(alone: Found) -> None:
    trained = alone["strong"]
    ends = trained.of("STEP_END")
    assert [end["step"] for end in ends] == [1, 6, 10, 12]
    assert [end["samples"] for end in ends] == [32, 192, 320, 384]
    assert [end["epoch"] for end in ends] == [1, 1, 1, 2]
    assert ends[-1]["loss"] < ends[0]["loss"] / 1.5
    assert all(end["step_time"] > 0 and end["throughput"] > 0 and end["input_wait"] > 0 for end in ends)
    assert ends[-1]["learning_rate"] == 0.01
    before, after = trained.of("INIT_EVALUATION")[0], trained.of("EVALUATE")[-1]
    assert before["count"] == after["count"] == 301
    assert after["accuracy"] > before["accuracy"]


def test_finished_holds_every_figure_and_they_agree(alone: Found) -> None:
    end = alone["strong"].finished
    assert end["raw_train_time"] > end["train_no_eval_time"] > end["pure_training_computing_time"] > 0
    assert math.isclose(end["raw_train_time"] - end["eval_time"], end["train_no_eval_time"])
    assert end["e2e_time"] > end["init_time"] + end["raw_train_time"] - 0.01
    assert math.isclose(end["p_whole"], 384 / end["raw_train_time"])
    assert end["p_whole"] < end["p_train"] < end["p_core"]
    assert (end["warmup_steps"], end["measured_steps"], end["measured_samples"]) == (5, 7, 7 * 32)
    times = end["step_time"]
    assert 0 < times["p50"] <= times["p90"] <= times["p99"]
    assert end["timing"] == "host clock"
    assert (end["threads"], end["peak_memory_bytes"], end["compile_time"]) == (1, None, None)
    assert (end["steps"], end["samples"], end["epochs"]) == (12, 384, 1)
    assert end["final_loss"] == alone["strong"].losses[12]


def test_init_end_says_what_was_built(alone: Found) -> None:
    (told,) = alone["strong"].of("INIT_END")
    assert told["parameters"] == len(alone["strong"].weights) == 16 * 32 + 32 + 32 * 2 + 2
    assert (told["device"], told["precision"], told["world_size"]) == ("cpu", "fp32", 1)
    assert told["libraries"]["torch"] == told["framework_version"]
    assert told["replaced"] == []


@pytest.mark.parametrize(
    ("scenario", "reason", "steps"),
    [
        ("target", "target", 6),
        ("strong", "max_steps", 12),
        ("max_samples", "max_samples", 5),
        ("parity", "parity", 4),
        ("epochs", "max_epochs", 20),
        ("deadline", "deadline", 1),
        ("throughput", "throughput", 25),
    ],
)
def test_it_stops_for_a_reason(alone: Found, scenario: str, reason: str, steps: int) -> None:
    trained = alone[scenario]
    assert (trained.finished["stop_reason"], trained.finished["steps"]) == (reason, steps)
    assert trained.of("TRAIN_END") == [{"reason": reason}]
    assert trained.finished["converged"] is (scenario == "target")


def test_however_it_stops_the_end_is_evaluated(alone: Found) -> None:
    for scenario in ("max_samples", "deadline", "epochs"):
        trained = alone[scenario]
        assert trained.of("EVALUATE")[-1]["step"] == trained.finished["steps"]
        assert trained.finished["final_metrics"]["count"] == 301
    assert [one["step"] for one in alone["epochs"].of("EVALUATE")] == [10, 20]


def test_a_step_belongs_to_the_epoch_it_was_in(alone: Found) -> None:
    ends = alone["epochs"].of("STEP_END")
    assert [(end["step"], end["epoch"]) for end in ends] == [(1, 1), (10, 1), (20, 2)]
    assert [end["epoch"] for end in alone["epochs"].of("EPOCH_END")] == [1, 2]
    assert alone["epochs"].finished["epochs"] == 2


def test_a_target_met_at_the_end_is_converged(alone: Found) -> None:
    assert alone["lower"].finished["converged"] is True
    assert alone["strong"].finished["converged"] is False


def test_synthetic_data_never_converge(alone: Found) -> None:
    assert alone["synthetic"].finished["final_metrics"]["accuracy"] > 0.5
    assert alone["synthetic"].finished["converged"] is False
    assert alone["target"].finished["converged"] is True


def test_evaluation_waits_for_its_first_step(alone: Found) -> None:
    assert [one["step"] for one in alone["late"].of("EVALUATE")] == [12]
    assert alone["late"].of("INIT_EVALUATION") == []


def test_throughput_only_measures_its_steps_and_evaluates_nothing(alone: Found) -> None:
    trained = alone["throughput"]
    assert trained.finished["measured_steps"] == 20
    assert trained.finished["measured_samples"] == 20 * 32
    assert trained.of("EVALUATE") == trained.of("INIT_EVALUATION") == []
    assert trained.finished["converged"] is False
    assert not any(mode == "eval" for mode, _, _ in trained.modes)


def test_evaluation_is_in_eval_mode_and_training_is_not(alone: Found) -> None:
    modes = alone["bent"].modes
    assert {tuple(mode) for mode in modes} == {("train", True, True), ("eval", False, False)}
    switches = [one for one, other in pairwise(modes) if one[0] == "eval" and other[0] == "train"]
    assert len(switches) == 2, "after the first evaluation and the one at step 6"


def test_evaluation_counts_every_sample_and_touches_nothing(alone: Found) -> None:
    found = alone.value("exact")
    for shares in found["loop"].values():
        assert shares == {"accuracy": found["hand"], "count": 301, "untouched": True, "training": True}
    assert abs(found["mean_of_means"] - found["hand"]) > 1e-3, "the control: a mean of means is another number"


def test_accumulated_micro_steps_are_one_big_batch(alone: Found) -> None:
    one, many = alone["strong"], alone["accumulated"]
    assert many.finished["steps"] == one.finished["steps"]
    assert many.finished["samples"] == one.finished["samples"]
    assert far(one.weights, many.weights) < 1e-5
    assert far(one.weights, alone["seed7"].weights) > 1e-2, "the control: another seed is another training"
    assert math.isclose(one.losses[1], many.losses[1], rel_tol=1e-5)


def test_without_a_learning_rate_nothing_is_learnt(alone: Found) -> None:
    trained = alone["lr0"]
    assert trained.weights == alone["untrained"].weights
    assert trained.of("INIT_EVALUATION")[0]["accuracy"] == trained.finished["final_metrics"]["accuracy"]
    assert trained.weights != alone["strong"].weights


def test_gradients_are_clipped_before_the_step(alone: Found) -> None:
    def length(name: str) -> float:
        moved = zip(alone[name].weights, alone["untrained"].weights, strict=True)
        return math.sqrt(sum((after - before) ** 2 for after, before in moved))

    assert length("clipped") == pytest.approx(1e-3, rel=1e-2)
    assert length("unclipped") > 0.1


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_autocast_lowers_the_forward_pass(alone: Found, precision: str, dtype: str) -> None:
    trained = alone[precision]
    assert trained.error is None
    assert trained.dtype == f"torch.{dtype}"
    assert trained.finished["final_loss"] == pytest.approx(alone["fp32"].finished["final_loss"], abs=2e-3)


def test_compiling_is_timed_apart(alone: Found) -> None:
    assert alone["compiled"].finished["compile_time"] > 0
    assert alone["compiled"].of("INIT_END")[0]["compile"] is True
    assert far(alone["compiled"].weights, alone["strong"].weights) < 1e-5


def test_a_loss_that_is_no_number_ends_it_even_between_log_points(alone: Found) -> None:
    trained = alone["nan"]
    assert trained.error is not None
    assert trained.error.startswith("NonFiniteLoss: the loss of step 4 is nan on rank 0 (precision fp32")
    assert "FINISHED" not in trained.names
    assert "TRAIN_END" not in trained.names


def test_data_without_a_whole_step_are_refused(alone: Found) -> None:
    error = alone["no_data"].error or ""
    assert error.startswith("DataError: the training data give no whole step in an epoch on this rank")
    assert error.endswith("one needs 1 batch(es) of 32")


def test_an_interrupted_training_goes_on_as_if_nothing_had_been(alone: Found) -> None:
    whole, first, second = (alone.within("resumed", name) for name in ("whole", "first", "second"))
    assert first.error == "Stopped: asked to stop at call 8"
    assert "FINISHED" not in first.names
    assert sorted(second.losses) == list(range(6, 15)), "from the checkpoint of step 5"
    assert second.losses == {step: loss for step, loss in whole.losses.items() if step > 5}
    assert second.weights == whole.weights
    assert second.finished["samples"] == whole.finished["samples"]
    assert second.of("INIT_EVALUATION") == []
    assert second.finished["epochs"] == whole.finished["epochs"] == 1
    assert alone.value("resumed", "left") == ["toy_pytorch_CPU_1_1_1_round1.finished.pt"]


def test_a_training_that_ran_out_of_time_can_be_continued(alone: Found) -> None:
    assert alone.value("resumed", "kept") == ["toy_pytorch_CPU_1_1_1_round1.pt"]


def test_data_that_can_skip_are_not_read_up_to_where_the_training_goes_on(alone: Found) -> None:
    whole, second = (alone.within("skipping", name) for name in ("whole", "second"))
    assert second.losses == {step: loss for step, loss in whole.losses.items() if step > 5}
    assert second.finished["epochs"] == whole.finished["epochs"] == 1


def test_checkpoints_need_a_place_before_the_training_begins(alone: Found) -> None:
    trained = alone["nowhere"]
    assert (trained.error or "").startswith("CheckpointError: checkpoint_dir is None and checkpoint_steps 5")
    assert "TRAIN_START" not in trained.names


def test_a_training_that_hardly_logs_tells_its_first_and_last_step(alone: Found) -> None:
    assert list(alone["rare"].losses) == [1, 9]


def test_a_checkpoint_of_another_training_is_refused(alone: Found) -> None:
    error = alone.within("resumed", "other").error
    assert error is not None
    assert "is another training's: train_batch_size is 32, here 16" in error
