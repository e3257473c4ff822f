"""Impossible records of ranks and damaged stored files: one case fails, all others are reported."""

import io
import itertools
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flagperf_driver import events, perflog
from pytest_flagperf.commands import main as flagperf
from pytest_flagperf.engines.agents.round_messages import Tracker
from pytest_flagperf.progress import RoundProgress
from pytest_flagperf.report.terminal.progress import progress_line
from pytest_flagperf.report.terminal.summary import summarize_run
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import UNREADABLE, Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import layout
from pytest_flagperf_page import chart_html, page
from tests.helpers.results_help import replay_dir
from tests.helpers.stored_runs import add_case, finish
from tests.plugin.conftest import toy as toy  # a fixture

from .test_any_input import VALUES, changed_json

TOO_DEEP = perflog.MAX_DEPTH + 1
LINES = [
    "[PerfLog] " + "[" * 100_000,
    '[PerfLog] {"event": "STEP_END", "value": ' + '{"a": ' * 900 + "1" + "}" * 900 + ', "metadata": {}}',
    f'[PerfLog] {{"event": "INIT_END", "value": {{"deviations": {"[" * TOO_DEEP}{"]" * TOO_DEEP}}}, "metadata": {{'
    '"file": "x", "lineno": 1, "time_ms": 1, "rank": 0}}',
    '[PerfLog] {"event": "TRAIN_START", "value": {}, "metadata": {"time_ms": Infinity, "rank": 0}}',
    '[PerfLog] {"event": "TRAIN_END", "value": {}, "metadata": {"time_ms": NaN, "rank": 1e999}}',
    '[PerfLog] {"event": "TRAIN_END", "value": {}, "metadata": {"time_ms": ' + "9" * 400 + "}}",
    '[PerfLog] {"event": ["FINISHED"], "value": {}, "metadata": {"time_ms": 1, "rank": 0, "lineno": 1, "file": ""}}',
    '[PerfLog] {"event": "INIT_END", "value": {"replaced": 7, "libraries": [1], "deviations": "x"}, "metadata": []}',
    '[PerfLog] {"event": "FAILED", "value": {"type": "\\ud800", "error": "\\udfff"}, "metadata": {"time_ms": 1}}',
]

nasty = st.one_of(
    st.sampled_from([*VALUES, -(10**400), 2**64, -math.inf, "1" * 400, "a\0b", "\x1b[31m"]),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(codec=None))),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
        max_leaves=6,
    ),
)
NAMES = ["step", "samples", "loss", "throughput", "step_time", "learning_rate", "accuracy", "top1", "time"]
NAMES += ["final_loss", "final_metrics", "steps", "p_core", "p_whole", "init_time", "raw_train_time", "forward_time"]
NAMES += ["peak_memory_bytes", "converged", "measured_steps", "warmup_steps", "deviations", "libraries", "replaced"]
record = st.fixed_dictionaries(
    {"event": st.sampled_from([getattr(events, name) for name in dir(events) if name.isupper()])},
    optional={
        "value": st.one_of(nasty, st.dictionaries(st.sampled_from(NAMES), nasty, max_size=8)),
        "metadata": st.one_of(
            nasty,
            st.dictionaries(st.sampled_from(["time_ms", "rank", "file", "lineno"]), nasty),
            st.just({"time_ms": 1_700_000_000_000, "rank": 0, "file": "x", "lineno": 1}),
        ),
    },
)
FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


GOOD = {"event": "STEP_END", "value": {"step": 1}, "metadata": {"file": "x", "lineno": 1, "time_ms": 1, "rank": 0}}


def log_line(body: object) -> str:
    return f"[PerfLog] {json.dumps(body)}"


def test_an_integer_beyond_all_floats_is_infinite() -> None:
    for digits in (308, 309, 4000):
        for sign in (1, -1):
            assert perflog.number(sign * int("9" * digits)) == sign * (math.inf if digits > 308 else 1e308)


@pytest.mark.parametrize("text", LINES, ids=[f"{number}-{text[:60]}" for number, text in enumerate(LINES)])
@pytest.mark.parametrize("loads", [None, orjson.loads], ids=["json", "orjson"])
def test_an_invalid_line_does_not_affect_other_records(text: str, loads: perflog.Loads | None) -> None:
    skipped = perflog.SkippedCounts()
    log = f"{text}\n{log_line(GOOD)}\n".encode()
    records = list(perflog.read_records(io.BytesIO(log), skipped, loads=loads))
    assert records[-1].value == {"step": 1}
    assert len(records) + skipped.broken >= 2
    assert not any(perflog.is_too_deep(one.value) for one in records)


@pytest.fixture(scope="module")
def recorded_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_case(tmp_path_factory.mktemp("records") / "run", "converged_1x1") / "round1"


def assert_reported(run: Path) -> store.StoredRun:
    read = store.load_run(run)
    for case in read.cases:
        for outcome in case.outcomes:
            assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) is not None
    store.write_run(run, store.RunInfo(), read.cases)
    json.loads((run / "results.json").read_text())
    assert list(summarize_run(read).lines(120))
    text = page.standalone(run, run / "report.html")
    # Damage is found by checks that say what is wrong; the nets below them are for what no check foresaw.
    assert "cannot show the details" not in text
    sentences = [failure.sentence for case in read.cases for outcome in case.outcomes for failure in outcome.failures]
    assert not any(re.search(r"cannot be read: \S+: \w+Error: ", sentence) for sentence in sentences), sentences
    return read


@pytest.mark.slow
@FEW
@given(st.lists(st.tuples(record, st.integers(0, 50)), min_size=1, max_size=3))
def test_such_records_are_measured_and_shown(recorded_round: Path, lines: list[tuple[dict[str, Any], int]]) -> None:
    log = recorded_round / "localhost_noderank0" / "rank0.out.log"
    good = (replay_dir("converged_1x1") / "localhost_noderank0" / "rank0.out.log").read_text().splitlines()
    for body, place in lines:
        good.insert(place, log_line(body))
    log.write_text("\n".join(good) + "\n")
    for name in (layout.RESULTS, layout.SUMS):  # of the round with the lines before, as --resume removes them
        (recorded_round.parent.parent / name).unlink(missing_ok=True)
    store.save_outcome(recorded_round, measure(recorded_round))
    (case,) = assert_reported(recorded_round.parent.parent).cases
    assert case.outcomes[0].state == "finished"


@FEW
@given(st.lists(record, min_size=1, max_size=4), st.dictionaries(st.sampled_from(["max_steps", "max_time_s"]), nasty))
def test_live_progress_takes_such_records(bodies: list[dict[str, Any]], config: dict[str, Any]) -> None:
    start = RoundProgress(case="alpha:plain:CPU:1:1:1", round=1, metric_name="accuracy", target=0.9)
    tracker = Tracker(start, config, 1_700_000_000_000)
    for body in bodies:
        for one in perflog.Reader().feed(f"{log_line(body)}\n".encode()):
            assert progress_line(tracker.take(one.event, one.value, one.time_ms))


@pytest.mark.parametrize("value", [1.7976931348623157e308, -1.7976931348623157e308, 1e308])
def test_the_largest_numbers_are_drawn(value: float) -> None:
    assert chart_html.dumped([chart_html.rounded(value)])


def _run_of_two(folder: Path) -> Path:
    run = folder / "run1"
    add_case(run, "throttled")
    add_case(run, "converged_1x1", framework="other")
    return finish(run)


FILES = [
    "outcome.json", "plan.json", "round.json", "localhost_noderank0/monitors.json", "../verdicts/*.json",
    "../../results.json",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_any_changed_value_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    whole = _run_of_two(tmp_path)
    (file, *_) = whole.glob(f"toy_pytorch_*/round1/{name}")
    place, numbers = file.resolve().relative_to(whole), itertools.count()

    @settings(FEW, max_examples=5, derandomize=True, database=None)
    @given(changed_json(json.loads(file.read_text())))
    def try_one(text: str) -> None:
        folder = tmp_path / str(next(numbers))
        run = Path(shutil.copytree(whole, folder / "run1"))
        (run / place).write_bytes(text.encode("utf-8", "surrogatepass"))
        if name != "outcome.json":
            (next(run.glob("toy_pytorch_*")) / "round1/outcome.json").unlink()  # it is measured again
        read = assert_reported(run)
        assert any(case.case.startswith("toy:other:") and case.outcomes[0].ok for case in read.cases)
        to = f"--to={folder}/made"
        for command in (
            ["show", run, "--figures"], ["report", run], ["compare", whole, run],
            ["export", run, to, "--format=markdown"], ["bundle", run, "--incomplete", to],
        ):  # fmt: skip
            assert flagperf([str(word) for word in command]) in (0, 1, 2)
        assert "Error" not in capsys.readouterr().err

    try_one()


@pytest.mark.parametrize("text", ["", "[1]", "[" * 100_000, '{"schema": ' + "9" * 5000])
@pytest.mark.parametrize("name", ["outcome.json", "plan.json", "round.json"])
@pytest.mark.integration
def test_a_case_whose_record_cannot_be_read_has_failed_and_the_others_stand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    run = _run_of_two(tmp_path)
    round_dir = next(run.glob("toy_pytorch_*")) / "round1"
    (round_dir / name).write_text(text)
    if name != "outcome.json":
        (round_dir / "outcome.json").unlink()
    bad, good = sorted(assert_reported(run).cases, key=lambda case: case.case.startswith("toy:other:"))
    closed = {one.case: one for one in summarize_run(store.load_run(run)).summaries}
    assert bad.case == "toy:pytorch:CPU:1:2:1"
    assert closed[bad.case].state == "failed"
    assert name in " ".join(closed[bad.case].failures) or text.startswith('{"schema"')
    assert closed[good.case].state == "passed"
    assert flagperf(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert f"failed: {bad.case}: " in shown
    assert "1 of 2 cases passed, 1 failed" in shown


def test_an_unexpected_error_fails_one_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run_of_two(tmp_path)
    load, shown = store.load_outcome, page._body

    def loaded(round_dir: Path) -> Outcome:
        if "toy_other" in str(round_dir):
            raise ZeroDivisionError("a bug")
        return load(round_dir)

    def body(case: CaseResult, *rest: Any) -> Iterator[str]:
        if case.case.startswith("toy:other"):
            raise PermissionError("a disk")
        yield from shown(case, *rest)

    monkeypatch.setattr(store, "load_outcome", loaded)
    monkeypatch.setattr(page, "_body", body)
    states = {case.case: case.outcomes[0].state for case in store.load_run(run).cases}
    assert states == {"toy:pytorch:CPU:1:2:1": "finished", "toy:other:CPU:1:1:1": UNREADABLE}
    text = page.standalone(run, run / "report.html")
    assert "ZeroDivisionError: a bug" in text
    assert "cannot show the details: PermissionError: a disk" in text
