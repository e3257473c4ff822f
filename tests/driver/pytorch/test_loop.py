"""The loop on one rank: the events it logs, when it evaluates, why it stops."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tests.driver.pytorch.conftest import RankResults

pytestmark = pytest.mark.slow


def distance(left: list[float], right: list[float]) -> float:
    return max(abs(first - second) for first, second in zip(left, right, strict=True))


def test_events_are_logged_in_order(alone: RankResults) -> None:
    assert alone["strong"].names == [
        "INIT_END", "INIT_EVALUATION", "TRAIN_START", "EPOCH_BEGIN", "STEP_BEGIN", "STEP_END", "STEP_END",
        "EVALUATE", "STEP_BEGIN", "STEP_END", "EPOCH_END", "EPOCH_BEGIN", "STEP_END", "EVALUATE", "TRAIN_END",
        "FINISHED",
    ]  # fmt: skip


def test_the_training_learns_and_logs_its_progress(alone: RankResults) -> None:
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


def test_finished_has_all_measurements_and_they_agree(alone: RankResults) -> None:
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


def test_init_end_describes_the_training(alone: RankResults) -> None:
    (init_end,) = alone["strong"].of("INIT_END")
    assert init_end["parameters"] == len(alone["strong"].weights) == 16 * 32 + 32 + 32 * 2 + 2
    assert (init_end["device"], init_end["precision"], init_end["world_size"]) == ("cpu", "fp32", 1)
    assert init_end["libraries"]["torch"] == init_end["framework_version"]
    assert init_end["replaced"] == []


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
def test_the_training_logs_why_it_stops(alone: RankResults, scenario: str, reason: str, steps: int) -> None:
    trained = alone[scenario]
    assert (trained.finished["stop_reason"], trained.finished["steps"]) == (reason, steps)
    assert trained.of("TRAIN_END") == [{"reason": reason}]
    assert trained.finished["converged"] is (scenario == "target")


def test_every_training_ends_with_an_evaluation(alone: RankResults) -> None:
    for scenario in ("max_samples", "deadline", "epochs"):
        trained = alone[scenario]
        assert trained.of("EVALUATE")[-1]["step"] == trained.finished["steps"]
        assert trained.finished["final_metrics"]["count"] == 301
    assert [value["step"] for value in alone["epochs"].of("EVALUATE")] == [10, 20]


def test_a_step_is_logged_with_its_epoch(alone: RankResults) -> None:
    ends = alone["epochs"].of("STEP_END")
    assert [(end["step"], end["epoch"]) for end in ends] == [(1, 1), (10, 1), (20, 2)]
    assert [end["epoch"] for end in alone["epochs"].of("EPOCH_END")] == [1, 2]
    assert alone["epochs"].finished["epochs"] == 2


def test_a_target_reached_by_the_last_evaluation_is_converged(alone: RankResults) -> None:
    assert alone["lower"].finished["converged"] is True
    assert alone["strong"].finished["converged"] is False


def test_synthetic_data_never_converge(alone: RankResults) -> None:
    assert alone["synthetic"].finished["final_metrics"]["accuracy"] > 0.5
    assert alone["synthetic"].finished["converged"] is False
    assert alone["target"].finished["converged"] is True


def test_the_first_evaluation_is_not_before_eval_start_steps(alone: RankResults) -> None:
    assert [value["step"] for value in alone["late"].of("EVALUATE")] == [12]
    assert alone["late"].of("INIT_EVALUATION") == []


def test_throughput_only_measures_its_steps_and_evaluates_nothing(alone: RankResults) -> None:
    trained = alone["throughput"]
    assert trained.finished["measured_steps"] == 20
    assert trained.finished["measured_samples"] == 20 * 32
    assert trained.of("EVALUATE") == trained.of("INIT_EVALUATION") == []
    assert trained.finished["converged"] is False
    assert not any(mode == "eval" for mode, _, _ in trained.modes)


def test_evaluation_is_in_eval_mode_and_training_is_not(alone: RankResults) -> None:
    modes = alone["dropout and norm"].modes
    assert {tuple(mode) for mode in modes} == {("train", True, True), ("eval", False, False)}
    switches = [before for before, after in pairwise(modes) if before[0] == "eval" and after[0] == "train"]
    assert len(switches) == 2, "after the first evaluation and the one at step 6"


def test_evaluation_counts_every_sample_and_does_not_change_the_model(alone: RankResults) -> None:
    exact = alone.value("exact")
    for shares in exact["loop"].values():
        assert shares == {"accuracy": exact["hand"], "count": 301, "untouched": True, "training": True}
    assert abs(exact["mean_of_means"] - exact["hand"]) > 1e-3, "the control: a mean of means differs"


def test_accumulated_micro_steps_are_one_big_batch(alone: RankResults) -> None:
    single, accumulated = alone["strong"], alone["accumulated"]
    assert accumulated.finished["steps"] == single.finished["steps"]
    assert accumulated.finished["samples"] == single.finished["samples"]
    assert distance(single.weights, accumulated.weights) < 1e-5
    assert distance(single.weights, alone["seed7"].weights) > 1e-2, "the control: another seed gives other weights"
    assert math.isclose(single.losses[1], accumulated.losses[1], rel_tol=1e-5)


def test_without_a_learning_rate_nothing_is_learnt(alone: RankResults) -> None:
    trained = alone["lr0"]
    assert trained.weights == alone["untrained"].weights
    assert trained.of("INIT_EVALUATION")[0]["accuracy"] == trained.finished["final_metrics"]["accuracy"]
    assert trained.weights != alone["strong"].weights


def test_gradients_are_clipped_before_the_step(alone: RankResults) -> None:
    def length(name: str) -> float:
        moved = zip(alone[name].weights, alone["untrained"].weights, strict=True)
        return math.sqrt(sum((after - before) ** 2 for after, before in moved))

    assert length("clipped") == pytest.approx(1e-3, rel=1e-2)
    assert length("unclipped") > 0.1


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_autocast_lowers_the_forward_pass(alone: RankResults, precision: str, dtype: str) -> None:
    trained = alone[precision]
    assert trained.error is None
    assert trained.dtype == f"torch.{dtype}"
    assert trained.finished["final_loss"] == pytest.approx(alone["fp32"].finished["final_loss"], abs=2e-3)


def test_compiling_is_timed_apart(alone: RankResults) -> None:
    assert alone["compiled"].finished["compile_time"] > 0
    assert alone["compiled"].of("INIT_END")[0]["compile"] is True
    assert distance(alone["compiled"].weights, alone["strong"].weights) < 1e-5


def test_a_nan_loss_ends_the_training_even_between_log_points(alone: RankResults) -> None:
    trained = alone["nan"]
    assert trained.error is not None
    assert trained.error.startswith("NonFiniteLoss: the loss of step 4 is nan on rank 0 (precision fp32")
    assert "FINISHED" not in trained.names
    assert "TRAIN_END" not in trained.names


def test_too_few_batches_for_a_step_are_an_error(alone: RankResults) -> None:
    error = alone["no_data"].error or ""
    assert error.startswith("DataError: the training data have too few batches for one step per epoch on this rank")
    assert error.endswith("a step needs 1 batch(es) of 32")


def test_an_interrupted_training_continues_to_the_same_result(alone: RankResults) -> None:
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


def test_a_training_that_ran_out_of_time_can_be_continued(alone: RankResults) -> None:
    assert alone.value("resumed", "kept") == ["toy_pytorch_CPU_1_1_1_round1.pt"]


def test_data_with_skip_continue_without_reading_earlier_batches(alone: RankResults) -> None:
    whole, second = (alone.within("skipping", name) for name in ("whole", "second"))
    assert second.losses == {step: loss for step, loss in whole.losses.items() if step > 5}
    assert second.finished["epochs"] == whole.finished["epochs"] == 1


def test_missing_checkpoint_dir_is_an_error_before_the_training(alone: RankResults) -> None:
    trained = alone["nowhere"]
    assert (trained.error or "").startswith("CheckpointError: checkpoint_dir is None and checkpoint_steps is 5; set")
    assert "TRAIN_START" not in trained.names


def test_the_first_and_last_step_are_always_logged(alone: RankResults) -> None:
    assert list(alone["rare"].losses) == [1, 9]


def test_a_checkpoint_of_another_training_is_an_error(alone: RankResults) -> None:
    error = alone.within("resumed", "other").error
    assert error is not None
    assert "belongs to another training: train_batch_size is 32, expected 16" in error
