"""What the kind adds to the plan, its memory and its weights, to the table and to the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.logs.points import MeasuredPoint
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, Chip, Suite
from pytest_flagperf.config import Resolved
from pytest_flagperf.config.module import load
from pytest_flagperf.engines.agents.environments import runtime_request
from pytest_flagperf.kind import kind_named, kind_of
from pytest_flagperf.plan import Plan, PlanRequest, make_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.results import Outcome
from pytest_flagperf.results.comparing import baselines
from pytest_flagperf.results.comparing.baselines import Accepted
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.running.directory import RunDirectory
from pytest_flagperf.running.records import Records
from pytest_flagperf.running.restarts import Restarts
from pytest_flagperf.running.rounds import Rounds
from pytest_flagperf.running.run import Run
from pytest_flagperf.selection import Selected
from pytest_flagperf.settings import Settings
from pytest_flagperf_compare.comparison import CaseRuns
from pytest_flagperf_page import chart_html
from pytest_flagperf_page.trend import trends_of
from pytest_flagperf_serving.memory import request_bytes, weight_bytes, with_memory
from pytest_flagperf_serving.tables import mark
from serving_tests.conftest import REPO, outcome_of, program
from tests.helpers.trees import write

CATALOG = Catalog.scan([REPO])
OF_8B: dict[str, Any] = {"suite": "llama31_8b:vllm", "scale": "reference"}


def planned(
    shape: str = "1:1", vendor: str = "cpu", hardware: str = "CPU", *settings: str,
    suite: str = "llama31_8b:transformers", scale: str = "small", **more: Any,
) -> Plan:  # fmt: skip
    request = PlanRequest(Case.parse(f"{suite}:{hardware}:{shape}:1"), vendor, scale, settings=settings, **more)
    return make_plan(CATALOG, request)


def outcome(right: float = 1.0, **more: Any) -> Outcome:
    points = [MeasuredPoint("start", {}, {"time_to_ready": 4.0, "client_rate": 20_000.0})]
    points += [MeasuredPoint("accuracy", {}, {"right_tokens": right, "perplexity_agreement": 1.0})]
    for users, rate, user in ((1, 100.0, 100.0), (2, 180.0, 90.0), (4, 280.0, 70.0)):
        times = {f"{name}_p{part}": 1 / user for name in ("ttft", "tpot", "itl") for part in (50, 90, 99)}
        rates = {"output_rate": rate, "device_rate": rate, "user_rate": user, "right_under_load": 1.0}
        limits = {"server_token_limit_s": 0.02, "interactive_token_limit_s": 0.0125}
        points.append(MeasuredPoint(f"{users} at once", {"concurrency": users}, {**rates, **times}, facts=limits))
    return outcome_of(points, **more)


def slower_at_2(rate: float) -> Outcome:
    """Return the outcome with another rate of a device at 2 requests at once."""
    own = outcome()
    figures = [{**one.figures, "device_rate": rate} if one.name == "2 at once" else one.figures for one in own.points]
    return replace(own, points=tuple(replace(one, figures=new) for one, new in zip(own.points, figures, strict=True)))


def test_a_slow_decline_of_one_concurrency_is_seen() -> None:
    """Each run is within the noise of the one before; the best concurrency is as fast as ever."""

    def found(*rates: float) -> list[str]:
        runs = [(f"run{number}", [slower_at_2(rate)]) for number, rate in enumerate(rates)]
        return [text for trend in trends_of(runs) for text in trend.sentences()]

    (sentence,) = found(181, 180, 179, 180, 181, 170, 169, 171, 170, 169)
    assert sentence == "device_rate at 2 at once: 5.6 % lower from run5 on; the run before is run4"
    assert found(181, 180, 179, 180, 181, 180, 179, 181, 180, 179) == [], "the control"


def test_each_concurrency_is_compared_with_that_of_another_run() -> None:
    old, new = (CaseResult("m:engine:CPU:1:1:1", (one,), {}) for one in (outcome(), slower_at_2(120.0)))
    row, same = CaseRuns(("old", "new"), old, new), CaseRuns(("old", "old"), old, old)
    (regression,) = row.regressions(row.changes())
    assert regression.startswith("device_rate at 2 at once")
    assert list(same.regressions(same.changes())) == [], "the control"


def test_each_concurrency_is_judged_against_its_own_baseline() -> None:
    """The best concurrency is as fast as ever, and a smaller one is not."""
    accepted = baselines.accept(CaseResult("m:engine:CPU:1:1:1", (outcome(),), {}), [], Accepted("a", "b"))
    assert {f"device_rate at {users} at once" for users in (1, 2, 4)} < accepted.metrics.keys()
    assert {"output_rate", "ttft_p50"} < accepted.metrics.keys()
    assert "client_rate" not in accepted.metrics, "it says nothing of the server"
    assert all(one.ok for one in baselines.judge([outcome()], accepted))
    new = slower_at_2(120.0)
    (failed,) = [one for one in baselines.judge([new], accepted) if not one.ok]
    assert failed.name == "baseline device_rate at 2 at once"
    assert failed.sentence.startswith("device_rate at 2 at once is 120 tokens/s (1 round), 33.3 % below the baseline's")
    other = [one for one in baselines.judge([replace(new, points=new.points[:-1])], accepted) if not one.ok][-1]
    assert other.sentence.startswith("ttft_p50 at 4 at once is missing")


def test_a_case_uses_the_devices_and_the_environment_of_pytorch() -> None:
    plan = planned("1:2", "nvidia", "H100")
    assert (plan.device, plan.backend, plan.kind) == ("cuda", "nccl", "serving")
    assert plan.program == "suites/llama31_8b/transformers/run_serving.py"
    requests = [
        runtime_request(Settings(), CATALOG, Case.parse(f"llama31_8b:{name}:CPU:1:1:1"), CATALOG.vendor("cpu"), "venv")
        for name in ("pytorch", "transformers")
    ]
    assert requests[0].framework == requests[1].framework == "pytorch"
    assert {*requests[0].requirements} == {*requests[1].requirements}


def test_vllm_has_the_vendors_package_and_one_server_for_all_devices() -> None:
    case, cpu = Case.parse("llama31_8b:vllm:CPU:1:2:1"), CATALOG.vendor("cpu")
    request = runtime_request(Settings(), CATALOG, case, cpu, "venv")
    config = cpu.path / "llama31_8b-vllm" / "config"
    own = CATALOG.suite("llama31_8b", "vllm").path / "requirements.txt"
    assert request.requirements == (own, config / "requirements.txt")
    assert request.overrides == (config / "overrides.txt",)
    assert planned("1:2", "cpu", "CPU", "concurrencies=[1]", suite="llama31_8b:vllm").config["one_server"]
    plan = planned("1:2", "nvidia", "H100", "precision=fp8", synthetic=True, **OF_8B)
    assert (plan.config["precision"], plan.config["case_config"]["num_layers"]) == ("fp8", 32)


def test_published_weights_are_planned_with_the_folder_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(Problems, match=r"needs its data at scale reference: pass their folder with --data-dir"):
        planned("1:2", "nvidia", "H100", **OF_8B)
    items = [Path(item.path) for item in CATALOG.suite("llama31_8b", "vllm").scales["reference"].data]
    for item in items[1:]:
        (tmp_path / item).mkdir(parents=True) if not item.suffix else write(tmp_path, str(item), "")
    lacks = "has no weights/config.json; suites/llama31_8b/README.md has the layout of this folder"
    with pytest.raises(Problems, match=lacks):
        planned("1:2", "nvidia", "H100", data_dir=tmp_path, **OF_8B)
    write(tmp_path, str(items[0]), "")
    plan = planned("1:2", "nvidia", "H100", data_dir=tmp_path, **OF_8B)
    assert [Path(item.path) for item in plan.manifest] == items
    assert kind_named("serving").describe(plan).labels == ["serves published weights"]
    standing: dict[str, Any] = {**OF_8B, "suite": "llama31_8b:openai", "data_dir": tmp_path}
    assert planned("1:1", "nvidia", "H100", "endpoint=http://h:1", **standing).config["weights"] == ""


def test_all_engines_of_a_model_are_judged_by_the_same_reference() -> None:
    def rules(suite: Suite) -> dict[str, Any]:
        names = load(suite.path / "config" / "_base.py").names
        return {name: value.value for name, value in names.items() if name.startswith("accuracy_")}

    suites = [suite for suite in CATALOG.suites.values() if suite.kind == "serving" and rules(suite)]
    assert len(suites) > 1
    for suite in suites:
        assert rules(suite) == rules(next(one for one in suites if one.model == suite.model))


def test_random_weights_are_planned_only_if_they_are_asked_for() -> None:
    kind = kind_named("serving")
    assert (planned().synthetic, kind.describe(planned()).labels) == (False, ["serves trained weights"])
    random = planned(synthetic=True)
    assert (random.synthetic, kind.describe(random).labels) == (True, ["serves random weights"])
    assert random.fingerprint["key"] != planned().fingerprint["key"]


@pytest.mark.parametrize(
    ("shape", "setting", "problem"),
    [
        ("2:1", "", "2 hosts: a serving case has one host, .*; use --nodes=1x1"),
        ("1:2", "concurrencies=[1]", r"expected a number of at least 2, a request for each of the 2 servers"),
        ("1:1", "concurrencies=[]", r"concurrencies is \[\]; expected different numbers from 1 on, the smallest first"),
        ("1:1", "concurrencies=[4,2]", r"concurrencies is \[4, 2\]; expected different numbers"),
        ("1:1", "concurrencies=[0,2]", r"concurrencies is \[0, 2\]; expected different numbers from 1 on"),
        ("1:1", "prompt_tokens=0", "prompt_tokens is 0; expected at least 1"),
        ("1:1", "answer_tokens=1", "answer_tokens is 1; expected at least 2"),
        ("1:1", "rate_requests=0", "rate_requests is 0; expected at least 1"),
        ("1:1", "rate_precision=0.0", "rate_precision is 0; expected a number above 0"),
        ("1:1", "prompt_tokens=500", "prompt_tokens is 500; expected at most 128, the length of a held-out text"),
        ("1:1", "answer_tokens=9000", "9,064 together; expected at most 8,192, the model's context"),
    ],
)
def test_a_case_that_cannot_be_served_is_refused_before_it_starts(shape: str, setting: str, problem: str) -> None:
    with pytest.raises(Problems, match=problem):
        planned(shape, "cpu", "CPU", *filter(None, [setting]))


@pytest.mark.parametrize(
    ("settings", "synthetic", "problem"),
    [
        (["endpoint=10.0.0.7:8000"], True, "endpoint is '10.0.0.7:8000'; expected a URL, as in http://10.0.0.7:8000"),
        (["endpoint=http://h:1"], False, "endpoint has no weights to judge its answers by; set weights to the folder"),
        (['server_command=["serve"]'], False, r"server_command is \['serve'\]; expected the words of a server"),
    ],
)
def test_a_server_that_cannot_be_reached_or_judged_is_refused(
    settings: list[str], synthetic: bool, problem: str
) -> None:
    with pytest.raises(Problems, match=problem):
        planned("1:1", "cpu", "CPU", *settings, suite="llama31_8b:openai", synthetic=synthetic)
    good = ["endpoint=http://h:1", "model_name=m", "weights=/w"]
    assert planned("1:1", "cpu", "CPU", *good, suite="llama31_8b:openai").config["endpoint"] == "http://h:1"
    with pytest.raises(Problems, match="endpoint"):
        planned("1:1", "cpu", "CPU", *good)  # an engine that starts its own server has none


def test_the_served_model_is_that_of_the_training() -> None:
    own = planned().config["case_config"]
    training = make_plan(CATALOG, PlanRequest(Case.parse("llama31_8b:pytorch:CPU:1:1:1"), "cpu", "small")).config
    assert {key for key, value in training.items() if own[key] != value} == {"max_steps"}


def on_h100(shape: str, *settings: str) -> Plan:
    return planned(shape, "nvidia", "H100", *settings, **OF_8B, synthetic=True)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama31_8b", "gpt_oss_20b"])
def test_weights_and_cache_are_as_large_as_those_of_torch(model: str, torch_python: str, tmp_path: Path) -> None:
    plan = planned("1:1", "cpu", "CPU", "prompt_tokens=60", "answer_tokens=40", suite=f"{model}:transformers")
    values = tmp_path / "plan.json"
    training = {key: {"value": value} for key, value in plan.config["case_config"].items()}
    values.write_text(json.dumps({"values": training}))
    suite = REPO / "suites" / model / "pytorch"
    weights, cache = map(int, program(torch_python, "measure", suite, values, tmp_path / "model").split())
    config, estimate = plan.config["case_config"], plan.config["memory_estimate"]
    assert 2 * weights == pytest.approx(estimate["weights"], rel=1e-3), "in fp32, the precision of the training"
    assert 2 * cache == pytest.approx(estimate["request"], rel=0.01)
    key = "attention_window" if "attention_window" in config else "num_kv_heads"
    other = {**config, key: 2 * config[key]}
    assert request_bytes(other, 100, "bf16", 1) > 1.1 * cache, f"the control: {key}"


def test_the_cache_is_as_large_as_vllm_says() -> None:
    """As vLLM 0.32 prints with 1 GiB of cache on a CPU: "Maximum concurrency for 130 tokens per request: 4096.00x"."""
    small = planned().config["case_config"]
    assert request_bytes(small, 2 * 128, "fp32", 1) == 2**30 / 4096, "two pages of 128 tokens"
    assert request_bytes({**small, "num_kv_heads": small["num_heads"]}, 2 * 128, "fp32", 1) != 2**30 / 4096


def test_tensor_parallelism_divides_weights_and_heads() -> None:
    one, two = (on_h100(shape).config["memory_estimate"] for shape in ("1:1", "1:2"))
    assert one["weights"] == pytest.approx(2 * 8.03e9, rel=1e-3), "the parameters of Llama 3.1 8B in bf16"
    assert one["request"] == 1280 * 131_072, "32 layers, 8 heads of 128, keys and values in bf16"
    assert (two["weights"], two["request"]) == (one["weights"] / 2, one["request"] / 2)
    model = on_h100("1:1").config["case_config"]
    assert request_bytes(model, 1, "bf16", 16) == request_bytes(model, 1, "bf16", 8), "a head is copied"
    assert weight_bytes(model, 8.03e9, "fp8", 1) < 0.6 * weight_bytes(model, 8.03e9, "bf16", 1)


def test_a_concurrency_that_does_not_fit_is_left_out_and_said() -> None:
    plan = on_h100("1:1", "concurrencies=[1,256,512]")
    assert plan.config["concurrencies"] == [1, 256]
    assert plan.values["concurrencies"].where == "those of [1, 256, 512] that fit into 80 GiB"
    words = kind_of(plan).describe(plan)
    assert words.measures == "1, 256 requests at once (not 512: too much for the memory) and the highest rate"
    assert words.facts["memory"].endswith(
        "cache for a request of 1,280 tokens; the 80 GiB of H100 hold 369 requests at once"
    )
    assert on_h100("1:2", "concurrencies=[1,256,512]").config["concurrencies"] == [1, 256, 512], "the control"
    small, training = Chip(memory_gib=12), CATALOG.suite("llama31_8b", "pytorch")
    _, problems = with_memory(Resolved(plan.values, (), ()), plan.shape, small, training)
    assert problems == ["weights and the cache of a request need 15.1 GiB, and a device has 12 GiB"]


def test_the_time_of_a_case_follows_from_the_limits_of_its_points() -> None:
    plan = on_h100("1:1", "concurrencies=[1,4]")
    found = kind_of(plan).estimate(plan, StoredRuns(Path("none")))
    assert not isinstance(found, str)
    assert (found.seconds, found.at_most) == (2 * 60 + 2 * 240, True)


def opened(folder: Path, *frameworks: str, **options: Any) -> tuple[Run, dict[str, Selected]]:
    """Return a run of one model on one device and on two, and its cases."""
    run = Run.open(REPO, REPO, {"nodes": "1x1,1x2", "reports": str(folder), **options}, None)
    assert run is not None
    chosen = [one for one in run.selection.cases if one.case.model == "llama31_8b"]
    run.requested = tuple(one for one in chosen if one.case.framework in frameworks)
    return run, {f"{one.case.framework} {one.case.shape}": one for one in chosen}


def test_the_case_that_serves_reads_the_checkpoint_of_the_training_of_its_shape(tmp_path: Path) -> None:
    run, cases = opened(tmp_path, "pytorch", "transformers")
    for shape in ("1x1", "1x2"):
        trains, serves = run.plan(cases[f"pytorch {shape}"]), run.plan(cases[f"transformers {shape}"])
        assert trains.config["checkpoint_dir"] == serves.config["weights_dir"] == str(run.directory.path / "weights")
        assert serves.config["weights_of_run"] == str(trains.case)
    own, cases = opened(tmp_path, "pytorch", "transformers", set=["checkpoint_dir=/saved"])
    assert own.plan(cases["transformers 1x1"]).config["weights_dir"] == "/saved", "the user's folder"


def test_a_case_without_the_training_in_its_run_trains_itself(tmp_path: Path) -> None:
    for frameworks, options in ((["transformers"], {}), (["pytorch", "transformers"], {"synthetic": "yes"})):
        run, cases = opened(tmp_path, *frameworks, **options)
        assert run.plan(cases["transformers 1x1"]).config["weights_of_run"] == ""
        assert run.plan(cases["pytorch 1x1"]).config["checkpoint_dir"] is None


def test_the_training_runs_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, cases = opened(tmp_path, "pytorch", "transformers")
    trains, serves, begun = cases["pytorch 1x1"], cases["transformers 1x1"], []
    directory = RunDirectory(tmp_path / "run")
    rounds = Rounds(run.plan, run.engine, directory, Records(directory), Restarts(0), run._sources.get)
    monkeypatch.setattr(rounds, "run", lambda plan, *_: begun.append(plan.case))
    rounds.outcome(serves, 1)
    rounds.outcome(trains, 1)
    assert begun == [trains.case, serves.case]


def test_the_table_has_a_line_for_each_case_and_marks_wrong_answers() -> None:
    kind, good = kind_named("serving"), CaseResult("m:engine:CPU:1:1:1", (outcome(),), {})
    head, line = kind.lines([good], 200)
    cells = head.split()
    assert cells[:6] == ["case", "tokens/s", "per", "device", "per", "user"]
    assert line.split()[:4] == ["m:engine:CPU:1:1:1", "280", "280", "100"]
    assert "100.0 %" in line
    assert len(kind.lines([good], 60)) == 3, "on a narrow terminal the case has its own line"
    wrong = outcome(right=0.5)
    assert mark([wrong]) == " (invalid: not accurate)"
    bad = CaseResult("m:engine:CPU:1:1:1", (wrong,), {})
    assert all("invalid: not accurate" in "".join(kind.lines([bad], width)) for width in (200, 60))
    assert kind.metric([wrong], named=True, with_target=True) == "output_rate 280 tokens/s (invalid: not accurate)"


def test_two_runs_are_compared_at_equal_speeds_of_a_user() -> None:
    def faster(factor: float, figure: str) -> Outcome:
        changed = [
            replace(one, figures={**one.figures, figure: one.figures.get(figure, 0) * factor}) for one in old.points
        ]
        return replace(old, points=tuple(changed))

    kind, old = kind_named("serving"), outcome()
    sentence = "at equal speeds, 70 tokens/s to 100 tokens/s of a user, a device gives {} times the tokens/s"
    assert kind.remarks([old], [faster(1.5, "device_rate")]) == [sentence.format("1.50")]
    assert kind.remarks([old], [old]) == [sentence.format("1.00")], "the control"
    assert "no speed of a user is in both" in kind.remarks([old], [faster(2.0, "user_rate")])[0]


def test_the_page_leads_with_the_curve_that_buyers_read() -> None:
    kind = kind_named("serving")
    first, *others = [one for one in kind.charts([outcome(), replace(outcome(), round=2)], 300) if one]
    assert (first.title, first.x) == ("tokens/s of a device over tokens/s of a user", "tokens/s of a user")
    assert [(line.x, line.y) for line in first.lines] == [([70.0, 90.0, 100.0], [280.0, 180.0, 100.0])]
    assert chart_html.spec([first])["charts"][0]["labels"] == [("4", "2", "1")], "the requests at once of each point"
    assert [(band.start, band.end) for band in first.bands] == [(50.0, 100.0), (80.0, 100.0)], "the limits"
    assert others[0].title == "ttft_p50, ttft_p90, ttft_p99 over concurrency"
    wrong = next(iter(kind.charts([outcome(right=0.5)], 300)))
    assert wrong is not None
    assert wrong.title.endswith("(invalid: not accurate)")
    single = outcome_of([one for one in outcome().points if one.values.get("concurrency", 1) == 1])
    assert next(iter(kind.charts([single], 300))) is None, "a curve has several points"
