"""The original's names in logs: ranks write them beside our names, and readers translate them."""

import re
from pathlib import Path

import pytest

from flagperf_driver import events
from flagperf_driver.node.logs.ranklog import RankLog, read_rank
from flagperf_driver.perflog import LogTranslator, Names
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.commands import main
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Target
from tests.helpers.recording import Training, write

REPO = Path(__file__).resolve().parents[2]
PUBLISHED = """\
[PerfLog] {"event": "STEP_END", "value": {"loss": 2.679504871368408, "embedding_average": 0.916015625, "epoch": 1, \
"end_training": true, "global_steps": 3397, "num_trained_samples": 869632, "learning_rate": 0.000175375, \
"seq/s": 822.455385237589}, "metadata": {"file": "run_pretraining.py", "lineno": 127, "time_ms": 1669034171032, \
"rank": 0}}
[PerfLog] {"event": "FINISHED", "value": {"e2e_time": 1661.6114165782928, "training_sequences_per_second": \
579.0933420700227, "converged": true, "final_loss": 3.066718101501465, "final_mlm_accuracy": 0.920166015625, \
"raw_train_time": 1501.713, "init_time": 148.937}, "metadata": {"file": "run_pretraining.py", "lineno": 158, \
"time_ms": 1669034171646, "rank": 0}}
"""
"""From the sample in FlagPerf's training/README.md, with shorter file names."""


def log_of(folder: Path, text: str) -> RankLog:
    path = folder / "rank0.out.log"
    path.write_text(text)
    return read_rank(path, 0, Target("mlm_accuracy", "higher", "fraction", 0.92))


def test_the_published_log_is_read_and_shown_in_its_result_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        folder = tmp_path / "CPM_TORCH_DEMO_A100_1X8" / f"round{number}" / "10.1.2.2_noderank0"
        folder.mkdir(parents=True)
        log = log_of(folder, PUBLISHED)
    (step,) = log.steps
    assert (step.step, step.samples, step.throughput) == (3397, 869632, 822.455385237589)
    assert log.finished is not None
    assert log.finished["p_whole"] == 579.0933420700227
    assert log.finished["final_metrics"] == {"mlm_accuracy": 0.920166015625}
    assert log.names.original
    assert not log.names.has_both
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("rank0.out.log: rank log of FlagPerf, with names of pytest-flagperf, not judged") == 2
    for name, text in (("step", "3,397"), ("samples", "869,632"), ("throughput", "822.5"), ("p_whole", "579.1")):
        assert len(re.findall(rf"(?m)^ +{name} +{text}", out)) == 2


def test_the_environment_says_that_the_original_wrote_the_log_and_without_records_it_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_of(tmp_path, "no record\n")
    assert main(["show", str(tmp_path / "rank0.out.log")]) == 2
    assert "no [PerfLog] record; expected the log of a rank" in capsys.readouterr().err
    training = Training("original", metric="mlm_accuracy", sample_unit="sequences", text=lambda *_: [PUBLISHED])
    outcome = measure(write(training, tmp_path / "round1"))
    assert outcome.environment["log"] == "of FlagPerf, with its names"
    assert outcome.value("p_whole") == 579.0933420700227
    assert "log" not in measure(write(Training("ours"), tmp_path / "round2")).environment


@pytest.mark.parametrize(
    ("model", "name", "short", "unit"),
    [
        ("bert", "mlm_accuracy", "seq/s", "sequences"),
        ("glm", "accuracy", "seq/s", "sequences"),
        ("resnet50", "acc1", "img/s", "images"),
    ],
)
def test_a_suites_records_have_the_original_names(model: str, name: str, short: str, unit: str) -> None:
    suite = next(suite for suite in Catalog.scan([REPO]).suites.values() if suite.name == f"{model}:pytorch")
    names = Names(suite.metric.name, suite.metric.original_name, suite.sample_unit)
    ours = {"p_whole": 98.5, "final_metrics": {suite.metric.name: 0.5}}
    finished = names.with_original_names(events.FINISHED, ours)
    assert (finished[f"training_{unit}_per_second"], finished[f"final_{name}"]) == (98.5, 0.5)
    assert names.with_original_names(events.STEP_END, {"throughput": 99.5})[short] == 99.5
    assert names.with_original_names(events.EVALUATE, {suite.metric.name: 0.5})[f"eval_{name}"] == 0.5


def test_a_record_reads_the_same_with_and_without_the_originals_names() -> None:
    """The names add no second metric to evaluations."""
    names = Names("top1", "", "images")
    translator = LogTranslator(names)
    for event, ours in (
        (events.STEP_END, {"step": 10, "samples": 640, "throughput": 99.5}),
        (events.EVALUATE, {"step": 10, "top1": 0.5}),
        (events.FINISHED, {"steps": 10, "p_whole": 98.5, "final_loss": 1.5, "final_metrics": {"top1": 0.5}}),
    ):
        both = names.with_original_names(event, ours)
        assert both.keys() > ours.keys()
        assert translator.translate(event, both) == translator.translate(event, ours) == ours


@pytest.mark.parametrize("value", ["x", None, {"a": 1}, float("inf")])
def test_a_difference_between_values_of_any_type_is_reported(value: object) -> None:
    translator = LogTranslator(Names("top1", "acc1", "images"))
    translator.translate(events.FINISHED, {"steps": 5, "global_steps": value})
    assert translator.found.differences == 1
    assert "global_steps = " in translator.found.difference


def test_the_originals_other_spellings_are_read() -> None:
    translator = LogTranslator(Names("top1", "acc1", "images"))
    value = translator.translate(
        events.FINISHED,
        {"throughput(sps)_raw": 1.0, "throuhgput(ips)_no_eval": 2.0, "final_acc1": 0.7, "final_acc5": 0.9},
    )
    assert value == {"p_whole": 1.0, "p_train": 2.0, "final_metrics": {"top1": 0.7, "acc5": 0.9}}
    assert translator.translate(events.STEP_END, {"tokens/s": 3.0}) == {"throughput": 3.0}
    assert translator.translate(events.EVALUATE, {"eval_acc1": 0.7, "eval_loss": 1.5}) == {"top1": 0.7, "loss": 1.5}
