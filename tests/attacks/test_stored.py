"""Stored figures that were changed after the run: each command that decides must refuse them, and say which file."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_flagperf.commands import main
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import OneCard
from pytest_flagperf.stored import digests, files
from tests.helpers.results_help import edit_json
from tests.helpers.stored_runs import finish, submission

CASE = "toy_pytorch_X9_1_1_1"
OUTCOME = f"{CASE}/round1/outcome.json"
VERDICTS = f"{CASE}/verdicts/test_converges_toy_pytorch_X9_1_1_1-round1_.json"
LOG = f"{CASE}/round1/h0_noderank0/rank0.out.log"
COMMANDS = {
    "show": ["RUN"],
    "compare": ["OTHER", "RUN"],
    "accept": ["RUN", "--baselines", "NEW"],
    "export": ["RUN", "--format=csv,markdown"],
    "report": ["RUN"],
    "bundle": ["RUN", "--shapes=1x1", "--to", "NEW.tar.gz"],
    "verify": ["RUN"],
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run, *_ = submission(tmp_path / "runs")
    return with_one_card(run)


def with_one_card(run: Path) -> Path:
    """Store the throughput of one card, as a measured speed-up does; here the case itself has one card."""
    (case,) = store.load_run(run).cases
    value = case.outcomes[0].value("p_core")
    assert value is not None
    store.save_one_card(run / CASE, OneCard.of([value], "this run", "images/s"))
    return finish(run)


def flagperf(command: str, run: Path) -> int:
    places = {"RUN": run, "OTHER": run.with_name("other"), "NEW": run.parent.parent / "new"}
    arguments = [command, *COMMANDS[command]]
    return main([re.sub("[A-Z]{3,}", lambda match: str(places[match[0]]), argument) for argument in arguments])


def scaled(run: Path) -> Path:
    path = run / OUTCOME
    text = path.read_text()
    value = re.search(r'"p_core",\n +"value": ([0-9.]+)', text)
    assert value is not None
    path.write_text(text[: value.start(1)] + str(float(value[1]) * 1.5) + text[value.end(1) :])
    return path


def turned_ok(run: Path) -> Path:
    """Turn the failed verdicts of a training that missed its target to passed ones."""
    path = run / VERDICTS
    text = path.read_text()
    assert '"ok": false' in text
    path.write_text(text.replace('"ok": false', '"ok": true'))
    return path


def measured_again(run: Path) -> Path:
    """Change a line of a log, and the outcome that follows from it, but not their digests."""
    log, path = run / LOG, run / OUTCOME
    log.write_text(log.read_text().replace('"peak_memory_bytes": 314572800', '"peak_memory_bytes": 1000'))
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, **measure(path.parent).to_json()}, indent=1) + "\n")
    return path


def without_digest(run: Path) -> Path:
    """Multiply a figure and remove the digest that shows it."""
    path, sums = scaled(run), run / "SHA256SUMS"
    if sums.exists():
        sums.write_text(re.sub(rf".*  {OUTCOME}\n", "", sums.read_text()))
    else:
        path.write_text(re.sub(r',\n "digest": .*', "", path.read_text()))
    return path


def without_sums(run: Path) -> Path:
    (run / "SHA256SUMS").unlink()
    return run / "results.json"


def removed(run: Path) -> Path:
    path = run / OUTCOME
    path.unlink()
    return path


def results_edited(run: Path) -> Path:
    """Change the file of the run alone."""
    path = run / "results.json"
    path.write_text(path.read_text().replace('"exit_status": 0', '"exit_status": 1'))
    return path


def as_0_1(run: Path) -> Path:
    """Write the digests of a run as version 0.1 did: within its files."""

    def seal(path: Path, made_from: dict[str, str]) -> str:
        body = json.loads(path.read_text())
        text = json.dumps({**body, **({"made_from": made_from} if made_from else {})}, indent=1, ensure_ascii=False)
        own = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(text.removesuffix("\n}") + f',\n "digest": "{own}"\n}}\n')
        return own

    (run / "SHA256SUMS").unlink()
    made_from = {}
    for path in sorted([*run.glob("*/*/outcome.json"), *run.glob("*/verdicts/*.json"), *run.glob("*/one_card.json")]):
        files = [file for file in path.parent.rglob("*") if file.is_file()] if path.name == "outcome.json" else []
        of_round = {file.relative_to(path.parent).as_posix(): file for file in files if file != path}
        sums = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in of_round.items()}
        made_from[path.relative_to(run).as_posix()] = seal(path, sums)
    seal(run / "results.json", made_from)
    return run


def logs_edited(run: Path) -> Path:
    """Change a line of a log that no figure comes from."""
    path = run / LOG
    path.write_text(path.read_text() + "\n")
    return path


Change = Callable[[Path], Path]
ATTACKS = [turned_ok, measured_again, without_digest, results_edited, logs_edited, removed]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unchanged_run_passes(command: str, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run_dir, run_dir.with_name("other"))
    assert flagperf(command, run_dir) == 0
    assert digests.CHANGED not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("seal", "attack", "command"),
    [
        *((finish, attack, "verify") for attack in [*ATTACKS, without_sums]),
        *((finish, scaled, command) for command in COMMANDS),
        *((as_0_1, attack, "verify") for attack in ATTACKS),
    ],
)
def test_a_changed_file_is_named(
    seal: Change, attack: Change, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, *_ = submission(tmp_path / "runs", {"1x1": {"last": 0.7 if attack is turned_ok else 0.93}})
    seal(with_one_card(run))
    assert flagperf("show", run) == 0, "the control"
    shutil.copytree(run, run.with_name("other"))
    path = attack(run)
    capsys.readouterr()
    assert flagperf(command, run) != 0
    assert f"{path}: {digests.CHANGED}" in "".join(capsys.readouterr())
    assert not list(tmp_path.glob("new*"))


def forged_outcome(run: Path) -> str:
    """Multiply a figure, and compute all digests again."""
    round_dir = (run / OUTCOME).parent
    body = json.loads((run / OUTCOME).read_text())
    for metric in body["metrics"]:
        metric["value"] = metric["value"] * 1.5 if metric["name"] == "p_core" else metric["value"]
    edit_json(round_dir / "outcome.json", metrics=body["metrics"])
    finish(run)
    return "metrics.p_core.value is"


def forged_verdicts(run: Path) -> str:
    body = json.loads((run / VERDICTS).read_text())
    edit_json(run / VERDICTS, verdicts=[{**verdict, "ok": True} for verdict in body["verdicts"]])
    finish(run)
    return "verdict target is passed"


def forged_log(run: Path) -> str:
    """Change a log, measure it again, and compute all digests again but the log's."""
    sums = run / "SHA256SUMS"
    (own,) = re.findall(rf".*  {LOG}\n", sums.read_text())
    measured_again(run)
    finish(run)
    sums.write_text(re.sub(rf".*  {LOG}\n", own, sums.read_text()))
    return f"rank0.out.log: {digests.CHANGED}"


def forged_results(run: Path) -> str:
    """Change the figures of results.json, which others publish, with a new digest."""
    body = json.loads((run / "results.json").read_text())
    (case,) = body["cases"]
    case["metrics"]["p_core"]["median"] *= 1.5
    edit_json(run / "results.json", cases=[case])
    return "metrics.p_core.median is"


def forged_one_card(run: Path) -> str:
    """Lower the throughput of one card, so that the speed-up grows."""
    path = run / CASE / "one_card.json"
    edit_json(path, one_card={**json.loads(path.read_text())["one_card"], "p_core": 1.0, "values": [1.0]})
    finish(run)
    return "no round of one card has the p_core 1.0"


@pytest.mark.parametrize(
    ("forge", "command"),
    [
        *((forge, "verify") for forge in (forged_verdicts, forged_log, forged_results, forged_one_card)),
        *((forged_outcome, command) for command in ("verify", "bundle", "accept")),
    ],
)
def test_a_forger_who_computes_digests_is_found_by_the_logs(
    forge: Callable[[Path], str], command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, *_ = submission(tmp_path / "runs", {"1x1": {"last": 0.7 if forge is forged_verdicts else 0.93}})
    with_one_card(run)
    expected = forge(run)
    assert not store.load_run(run).changed, "digests alone do not show it"
    assert flagperf(command, run) != 0
    assert expected in "".join(capsys.readouterr())


@pytest.mark.parametrize(("field", "code"), [("drawings", 0), ("steps", 1)])
def test_a_run_may_lack_a_field_only_if_it_would_be_empty(field: str, code: int, run_dir: Path) -> None:
    """A field that was added after the run."""
    body = json.loads((run_dir / OUTCOME).read_text())
    del body[field]
    files.write(run_dir / OUTCOME, body)
    finish(run_dir)
    assert flagperf("verify", run_dir) == code
