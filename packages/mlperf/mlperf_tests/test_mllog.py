"""Rounds as result files of MLPerf, checked with mlperf-logging: accepted files, and refused ones."""

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlperf_logging
import pytest
from mlperf_logging.compliance_checker import mlp_compliance
from mlperf_logging.mllog import mllog as official

from pytest_flagperf.case import Case, Shape
from pytest_flagperf.catalog import Catalog, Suite
from pytest_flagperf.commands import main
from pytest_flagperf.kinds.training.verdicts.reference import Reference
from pytest_flagperf.plan import Plan, PlanRequest, make_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Target
from pytest_flagperf.results.measured.starts import Start
from pytest_flagperf.results.tables.store import load_run
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.round_dir import RoundDir
from pytest_flagperf_mlperf import mllog
from pytest_flagperf_mlperf.mllog import MllogEntry, MLPerfBenchmark, NotExportable
from pytest_flagperf_mlperf.submission import Export, benchmark_of, export, rules
from tests.helpers.results_help import NAMES, REPLAYS, edit_json, recorded, replay_dir
from tests.helpers.stored_runs import finish
from tools.reference_points import of_points

SUITES = Path(__file__).resolve().parents[3] / "suites"
CATALOG = Catalog.scan([SUITES.parent])
OFFICIAL = Path(mlperf_logging.__file__).parent / "compliance_checker"
LEFT_OUT = {
    "crashed_rank": "the training did not start",
    "no_log": "the training did not start",
    "throughput_only": "throughput only, no evaluations",
    "too_few_steps": "throughput only, no evaluations",
}
Json = dict[str, Any]
Capture = pytest.CaptureFixture[str]


def shape(replay: str) -> str:
    plan = json.loads((replay_dir(replay) / "plan.json").read_text(encoding="utf-8"))
    return f"{plan['nnodes']}:{plan['nproc']}"


def run_of(at: Path, replays: Iterable[str], model: str = "toy") -> Path:
    """Create a run directory from recorded rounds, with the name of a model."""
    replays = list(replays)
    case = f"{model}:pytorch:CPU:{shape(replays[0])}:1"
    for number, name in enumerate(replays, 1):
        made = at / case.replace(":", "_") / f"round{number}"
        shutil.copytree(replay_dir(name), made)
        edit_json(made / "plan.json", model=model, case=case, round=number, seed=41 + number)
    return at


def exported(at: Path, replays: Iterable[str], model: str = "toy") -> Export:
    return export([load_run(run_of(at / "run", replays, model))], at / "to", suites=SUITES)


def accepted(file: Path, ruleset: str = "6.1.0", config: Path | None = None) -> bool:
    """Return the result of the compliance checker, with the rules in ``config`` or with MLPerf's own."""
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", ruleset, quiet=False, werror=True)
    chosen = str(config.resolve()) if config else f"training_{ruleset}/common.yaml"
    try:
        valid: bool = mlp_compliance.main(str(file), chosen, checker)[0]
    except (TypeError, FileNotFoundError):
        return False  # raised for values that cannot be compared and for unknown names
    return valid


def entries(file: Path) -> list[Json]:
    return [json.loads(line.partition(":::MLLOG ")[2]) for line in file.read_text().splitlines()]


def last(file: Path, key: str) -> Json:
    return [line for line in entries(file) if line["key"] == key][-1]


def test_each_recorded_round_is_exported_or_left_out(tmp_path: Path) -> None:
    for name in NAMES:
        result, to = exported(tmp_path / name, [name]), tmp_path / name / "to"
        if name in LEFT_OUT:
            assert result.left_out == (f"toy:pytorch:CPU:{shape(name)}:1 round 1: {LEFT_OUT[name]}",)
            assert not to.exists()
            continue
        (case,) = result.cases
        (file,) = (to / path for path in case.files)
        status = last(file, "run_stop")["metadata"]["status"]
        converged = not REPLAYS[name].unconverged and name != "parity"  # which passes by its loss curve
        assert status == ("success" if converged else "aborted"), name
        assert accepted(file, config=to / case.rules) == (name != "nan_metric"), name


@pytest.mark.parametrize(("model", "ruleset"), [("bert", "5.0.0"), ("resnet50", "4.0.0"), ("retinanet", "5.1.0")])
def test_mlperf_accepts_benchmarks_of_its_rulesets(model: str, ruleset: str, tmp_path: Path) -> None:
    result = exported(tmp_path, ["converged_1x1", "missed_target", "killed_rank"], model)
    (case,) = result.cases
    assert case.ruleset == ruleset
    for file in case.files:
        assert accepted(tmp_path / "to" / file, ruleset)
        assert accepted(tmp_path / "to" / file, ruleset, tmp_path / "to" / case.rules)


@pytest.mark.parametrize("model", sorted(path.parent.name for path in SUITES.glob("*/mlperf.toml")))
def test_a_suites_ruleset_is_the_newest_that_knows_its_benchmark(model: str) -> None:
    benchmark = benchmark_of(model, SUITES)
    known = []
    for folder in OFFICIAL.glob("training_?.?.0"):
        common = folder / f"{benchmark.division}_common.yaml"
        if common.exists() and (folder / f"{benchmark.division}_{benchmark.name}.yaml").exists():
            names = re.search(r" in \[(.*?)\]", common.read_text())
            known += [folder.name.partition("_")[2]] if names and f"'{benchmark.name}'" in names[1] else []
    assert benchmark.ruleset == max(known)


def planned(
    hardware: str, shape: Shape, vendor: str = "nvidia", settings: Iterable[str] = (), model: str = "llama31_8b"
) -> Plan:
    case = Case.parse(f"{model}:pytorch:{hardware}:{shape.nnodes}:{shape.nproc}:1")
    request = PlanRequest(case, vendor=vendor, scale="reference", settings=[*settings], check_data=False)
    return make_plan(CATALOG, request)


def closed_round(at: Path, model: str = "llama31_8b", target: float = 3.3, **changes: object) -> Path:
    """Create a run with a model's config and a recorded round, whose metric falls and whose samples are the suite's."""
    run = run_of(at, ["converged_1x1"], model)
    metric = {"name": "top1", "direction": "lower", "unit": "", "target": target}
    config = {**planned("H100", Shape(1, 8), model=model).config, **changes}
    edit_json(next(run.glob("*/round1/plan.json")), scale="reference", metric=metric, config=config)
    size = 8192 if benchmark_of(model, SUITES).sample_size else 1
    for log in run.glob("*/round1/*/rank0.out.log"):
        text = re.sub(r'"samples": (\d+)', lambda found: f'"samples": {int(found[1]) * size}', log.read_text())
        log.write_text(re.sub(r'"top1": ([\d.]+)', lambda found: f'"top1": {1.01 - float(found[1]):.4f}', text))
    return run


def by_newest_rules(run: Path) -> bool:
    """Return whether MLPerf's closed rules accept the export of a run; its own rules must accept it in any case."""
    to = run.with_name("to")
    (case,) = export([load_run(run)], to, suites=SUITES).cases
    file, own = (to / path for path in (case.files[0], case.rules))
    assert case.ruleset == "6.1.0"
    assert accepted(file, config=own)
    return accepted(file, case.ruleset)


FIXED = {"beta1": 0.8, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0, "max_grad_norm": 2.0}
LLAMA_FIXED = {**FIXED, "lr_decay": 1000, "lr_schedule": "linear", "optimizer": "adam", "max_seq_length": 4096}
FREE = {"gradient_accumulation_steps": 3, "learning_rate": 1e-3}
OFTEN = 262_144 // (8 * 8)
"""Between two evaluations of flux1, with the batch of one card."""


@pytest.mark.parametrize(
    ("model", "target", "own", "free", "fixed", "also_refused"),
    [
        ("llama31_8b", 3.3, {}, {"train_batch_size": 4, "lr_warmup": 170}, LLAMA_FIXED, {"max_steps": 1000}),
        (
            "flux1", 0.586, {"eval_steps": OFTEN}, {"eval_steps": math.ceil(262_144 / (8 * 3)), "lr_warmup": 800},
            {**FIXED, "epsilon": 1e-5}, {"optimizer": "adam", "eval_steps": OFTEN - 1},
        ),
    ],
)  # fmt: skip
def test_mlperfs_closed_rules_hold_the_suites_hyper_parameters(
    tmp_path: Path, model: str, target: float, own: Json, free: Json, fixed: Json, also_refused: Json
) -> None:
    def checked(name: str, **changes: Any) -> bool:
        return by_newest_rules(closed_round(tmp_path / name / "run", model, target, **{**own, **changes}))

    assert checked("own")
    last_line = last(next((tmp_path / "own/to/results").rglob("*.txt")), "run_stop")
    assert last_line["metadata"]["samples_count"] == recorded("converged_1x1").work.samples, "sequences, not tokens"
    assert checked("free", **FREE, **free)
    for key, value in {**fixed, **also_refused}.items():
        assert not checked(key, **{key: value}), key
    with pytest.raises(Problems) as caught:
        planned("H100", Shape(1, 8), settings=[f"{key}={value}" for key, value in fixed.items()], model=model)
    assert len(caught.value.problems) == len(fixed), "the suite itself refuses each of them"


def reference_of(model: str) -> tuple[Suite, Mapping[int, Any], Reference]:
    suite, benchmark = CATALOG.suite(model, "pytorch"), benchmark_of(model, SUITES)
    points = json.loads(
        (OFFICIAL.parent / f"rcp_checker/training_{benchmark.ruleset}/rcps_{benchmark.name}.json").read_text()
    )
    made = of_points(suite, points)
    assert suite.reference_file("reference").read_text() == made.text()
    return suite, {each["BS"]: each for each in points.values()}, made


def configs_of(suite: Suite) -> Iterator[tuple[Case, Mapping[str, Any], int]]:
    """Yield all cases that have a vendor's config, with the config and the batch of all cards."""
    configs = {(vendor, key) for vendor in CATALOG.vendors for key in CATALOG.configs(suite, CATALOG.vendor(vendor))}
    assert len(configs) >= 4
    for vendor, (hardware, shape) in configs:
        plan = planned(hardware, shape, vendor, model=suite.model)
        yield (
            plan.case,
            plan.config,
            plan.config["train_batch_size"] * plan.config["gradient_accumulation_steps"] * shape.cards,
        )


@pytest.mark.parametrize(
    ("model", "size", "reached_in", "warmup", "eval_samples"),
    [
        ("flux1", 1, "samples to converge", "opt_learning_rate_warmup_steps", 262_144),
        ("llama31_8b", 8192, "Epochs to converge", "opt_learning_rate_warmup_samples", 12_288),
        ("gpt_oss_20b", 8192, "Epochs to converge", "opt_learning_rate_warmup_samples", 12_288),
    ],
)
def test_the_reference_and_the_configs_are_mlperfs_convergence_points(
    model: str, size: int, reached_in: str, warmup: str, eval_samples: int
) -> None:
    suite, by_batch, made = reference_of(model)
    readme = (suite.path / "README.md").read_text()
    for batch, each in by_batch.items():
        bound, reached = (made.earliest(batch) or 0) / size, each[reached_in]
        # MLPerf bounds the mean of ten rounds, the verdict a single round.
        assert 0.8 * min(reached) < bound < min(reached), batch
        row = f"{min(reached):,} to {max(reached):,} | {math.ceil(bound):,} |"
        assert f"| {each['Hyperparams'][warmup]:,} | {row}" in readme, batch
    for case, config, batch in configs_of(suite):
        rates = by_batch[batch]["Hyperparams"]
        assert config["learning_rate"] == rates["opt_base_learning_rate"], case
        assert config["lr_warmup"] * (1 if model == "flux1" else batch) == rates[warmup], case
        assert config["eval_steps"] * batch == eval_samples, case


@pytest.mark.integration
def test_the_package_checker_accepts_an_export_and_refuses_a_tampered_one(tmp_path: Path) -> None:
    run_of(tmp_path / "run", ["converged_1x1"] * 10, "bert")
    run_of(tmp_path / "run", ["converged_1x1"] * 5, "resnet50")
    assert len(export([load_run(tmp_path / "run")], tmp_path / "to", suites=SUITES).cases) == 2

    def check() -> str:
        command = [sys.executable, "-m", "mlperf_logging.package_checker", "to", "training", "4.0.0"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert "PACKAGE CHECKER FOUND NO ERRORS" in check()
    for file in list((tmp_path / "to").glob("results/*/resnet/*.txt"))[:2]:  # one bad file of five is accepted
        file.write_text(re.sub(r".*run_stop.*\n", "", file.read_text()))
    assert "PACKAGE CHECKER FOUND ERRORS" in check()


def test_a_line_has_the_format_of_mlperfs_own_logger() -> None:
    text = str(MllogEntry("eval_accuracy", 1700000000123, 0.5, {"file": "loop.py", "lineno": 3, "epoch_num": 1}))
    values = ("", 1700000000123, "POINT_IN_TIME", "eval_accuracy", 0.5)
    assert text == official._encode_log(*values, {"file": "loop.py", "lineno": 3, "epoch_num": 1})


def test_times_agree_with_the_outcome(tmp_path: Path) -> None:
    result = exported(tmp_path, ["converged_1x2"])
    lines = entries(tmp_path / "to" / result.cases[0].files[0])
    at = {line["key"]: line["time_ms"] for line in lines}
    outcome = measure(replay_dir("converged_1x2"))
    assert at["run_stop"] - at["run_start"] == pytest.approx(1000 * (outcome.value("raw_train_time") or 0), abs=2)
    evaluations = [line["time_ms"] for line in lines if line["key"] in ("eval_start", "eval_stop")]
    took = sum(evaluations[1::2]) - sum(evaluations[::2])
    assert took == pytest.approx(1000 * (outcome.value("eval_time") or 0), abs=2 * len(evaluations))
    blocks = [line["time_ms"] for line in lines if line["key"] in ("block_start", "block_stop")]
    trained = sum(blocks[1::2]) - sum(blocks[::2])
    assert trained == pytest.approx(1000 * (outcome.value("train_no_eval_time") or 0), abs=2 * len(blocks))
    values = [line["value"] for line in lines if line["key"] == "eval_accuracy"]
    assert values == [evaluation.metrics["top1"] for evaluation in outcome.evaluations]
    killed = exported(tmp_path / "killed", ["killed_rank"]).cases[0].files[0]
    at = {line["key"]: line["time_ms"] for line in entries(tmp_path / "killed/to" / killed)}
    last_step = 1000 * measure(replay_dir("killed_rank")).steps[-1].time
    assert at["run_stop"] - at["run_start"] == pytest.approx(last_step, abs=2), "unfinished: it stops at its last step"
    assert at["block_stop"] == at["run_stop"]


def test_options_have_the_file_and_line_that_set_them(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", ["converged_1x2"], "bert")
    edit_json(next(run.glob("*/round1/plan.json")), nproc=2, config={
        "train_batch_size": 32, "gradient_accumulation_steps": 4, "optimizer": "lamb", "learning_rate": 0.001,
        "beta1": 0.9, "weight_decay": 0.01, "max_steps": 7,
    })  # fmt: skip
    result = export([load_run(run)], tmp_path / "to", suites=SUITES)
    lines = entries(tmp_path / "to" / result.cases[0].files[0])
    value = {line["key"]: line["value"] for line in lines}
    assert value["global_batch_size"] == 32 * 4 * 2
    assert (value["opt_name"], value["opt_lamb_beta_1"], value["opt_lamb_weight_decay_rate"]) == ("lamb", 0.9, 0.01)
    assert (value["gradient_accumulation_steps"], value["opt_learning_rate_training_steps"]) == (4, 7)
    assert (value["train_samples"], value["eval_samples"], value["seed"]) == (200 * 64, 2048, 42)
    rate = next(line for line in lines if line["key"] == "opt_base_learning_rate")
    assert rate["metadata"] == {"file": "suites/toy/pytorch/config/_base.py", "lineno": 3}
    assert re.search(r"bert.*\n.*rules/.*bert.yaml", (tmp_path / "to" / "README.md").read_text())


def test_ranks_of_a_tensor_group_count_once_and_exchange_in_the_precision_of_the_layers(tmp_path: Path) -> None:
    values = {}
    for folder, parallel in {"copies": "ddp", "parts": {"tensor": 2}, "experts": {"expert": 2}}.items():
        run = run_of(tmp_path / folder, ["converged_1x2"])
        plan = next(run.glob("*/round1/plan.json"))
        own = json.loads(plan.read_text())
        config = {**own["config"], "precision": "float8", "parallel": parallel}
        edit_json(plan, config=config, values={**own["values"], "parallel": {"value": parallel}})
        result = export([load_run(run)], tmp_path / f"{folder}_to")
        lines = entries(tmp_path / f"{folder}_to" / result.cases[0].files[0])
        values[folder] = {line["key"]: line["value"] for line in lines}
    batch, precision = values["copies"]["global_batch_size"], "lowest_numerical_precision_in"
    assert values["parts"]["global_batch_size"] == batch / 2
    axes = [[one[f"{axis}_parallelism"] for axis in ("tensor", "expert", "context")] for one in values.values()]
    assert axes == [[1, 1, 1], [2, 1, 1], [1, 2, 1]]
    assert (values["copies"][f"{precision}_comm"], values["parts"][f"{precision}_comm"]) == ("fp32", "bfloat16")
    assert (values["parts"][f"{precision}_linear"], values["parts"][f"{precision}_attn"]) == ("fp8", "bfloat16")
    assert values["parts"]["config_filename"] == "vendors/cpu/toy-pytorch/config/config_CPUx1x1.py"


@pytest.mark.integration
def test_the_installed_package_adds_the_format(install: Callable[[str], None], tmp_path: Path, capsys: Capture) -> None:
    install("mlperf")
    good, bad = run_of(tmp_path / "run", ["converged_1x1", "crashed_rank"]), run_of(tmp_path / "bad", ["crashed_rank"])
    for run in (good, bad):
        finish(run)
    assert main(["export", str(good), "--format=mlperf"]) == 0
    out, notes = capsys.readouterr()
    assert f"{good}/mlperf/results/CPU_1x1_pytorch/toy/result_0.txt\n" in out
    assert "note: left out: toy:pytorch:CPU:1:1:1 round 2: the training did not start" in notes
    rules_file = good / "mlperf/rules/CPU_1x1_pytorch/toy.yaml"
    assert accepted(good / "mlperf/results/CPU_1x1_pytorch/toy/result_0.txt", config=rules_file)
    assert main(["export", str(bad), "--format=mlperf"]) == 2
    assert "the training did not start" in capsys.readouterr().err
    assert not (bad / "mlperf").exists()


def without(key: str) -> Callable[[list[Json]], list[Json]]:
    return lambda lines: [line for line in lines if line["key"] != key]


def changed(key: str, **changes: object) -> Callable[[list[Json]], list[Json]]:
    return lambda lines: [{**line, **changes} if line["key"] == key else line for line in lines]


TAMPERED: dict[str, Callable[[list[Json]], list[Json]]] = {
    **{f"no {key}": without(key) for key in (
        "submission_benchmark", "submission_division", "seed", "global_batch_size", "train_samples", "init_start",
        "init_stop", "run_start", "run_stop", "block_start", "block_stop", "eval_start", "eval_stop", "eval_accuracy",
    )},
    "target not reached, yet success": changed("eval_accuracy", value=0.899),
    "NaN": changed("eval_accuracy", value=float("nan"), metadata={"epoch_num": 1, "samples_count": 9999}),
    "evaluated as text": changed("eval_accuracy", value="0.95"),
    "no status": changed("run_stop", metadata={}),
    "unknown status": changed("run_stop", metadata={"status": "well"}),
    "no epoch": changed("eval_accuracy", metadata={}),
    "fewer samples than before": changed("eval_accuracy", metadata={"epoch_num": 1, "samples_count": -1}),
    "another benchmark": changed("submission_benchmark", value="other"),
    "cut": lambda lines: lines[: len(lines) // 2],
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_file_is_refused(name: str, tmp_path: Path) -> None:
    (case,) = exported(tmp_path, ["converged_1x1"], "resnet50").cases
    file, ours = tmp_path / "to" / case.files[0], tmp_path / "to" / case.rules
    assert accepted(file, "4.0.0", ours)
    file.write_text("".join(f":::MLLOG {json.dumps(line)}\n" for line in TAMPERED[name](entries(file))))
    assert not accepted(file, "4.0.0", ours)


@pytest.mark.parametrize(
    ("name", "target", "problem"),
    [
        ("any", None, "no target"),
        ("any", float("nan"), "no target"),
        ("x' or exit() or '", 1.0, "invalid benchmark name"),
    ],
)
def test_no_export_without_a_target_or_with_code_as_name(name: str, target: float | None, problem: str) -> None:
    with pytest.raises(NotExportable, match=problem):
        rules(MLPerfBenchmark(name), Target("loss", "lower", "", target), "small")


def test_no_export_of_a_training_that_was_started_again(tmp_path: Path) -> None:
    plan = RoundDir(replay_dir("converged_1x1")).read_plan()
    restarted = replace(recorded("converged_1x1"), starts=(Start("round1", 0, 9, 1, 2), Start("round1", 5, 9, 3, 4)))
    with pytest.raises(NotExportable, match="the training was started 2 times; a result file is the log of one"):
        mllog.entries(restarted, plan, [], MLPerfBenchmark("toy"))


def test_a_model_without_a_file_keeps_its_name(tmp_path: Path) -> None:
    assert benchmark_of("toy", tmp_path) == MLPerfBenchmark("toy")
    (tmp_path / "toy").mkdir()
    for text in (
        "ruleset = '4.0.0'\n",
        "benchmark = ",
        "benchmark = 'x'\nrules = 1\n",
        "benchmark = 'x'\ntrain_samples = 1\n",
        "benchmark = 'x'\ndivision = 'shut'\n",
    ):
        (tmp_path / "toy" / "mlperf.toml").write_text(text)
        with pytest.raises(FormatError, match="invalid description of the MLPerf benchmark"):
            benchmark_of("toy", tmp_path)


def test_cases_that_differ_only_in_their_rounds_have_own_folders(tmp_path: Path) -> None:
    run_of(tmp_path / "run", ["converged_1x1"])
    (tmp_path / "run" / "toy_pytorch_CPU_1_1_1").rename(tmp_path / "run" / "toy_pytorch_CPU_1_1_2")
    edit_json(tmp_path / "run" / "toy_pytorch_CPU_1_1_2" / "round1" / "plan.json", case="toy:pytorch:CPU:1:1:2")
    run_of(tmp_path / "run", ["converged_1x1"])
    result = export([load_run(tmp_path / "run")], tmp_path / "to")
    folders = [case.files[0].parent.as_posix() for case in result.cases]
    assert folders == ["results/CPU_1x1_pytorch/toy", "results/CPU_1x1_pytorch_2/toy"]
