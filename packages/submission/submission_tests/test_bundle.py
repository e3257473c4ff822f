"""``flagperf bundle``: complete and incomplete submissions; tests/attacks has changed runs, which verify must find."""

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import OneCard
from tests.helpers.command_line import Capture, errors_of, output_of
from tests.helpers.stored_runs import add_case, finish, run_of, submission
from tests.replays import make


def test_a_complete_submission_is_one_archive_with_checksums(tmp_path: Path, capsys: Capture) -> None:
    archive = tmp_path / "mine.tar.gz"
    out = output_of(capsys, "bundle", *submission(tmp_path / "runs"), "--to", archive)
    assert "complete" in out
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "out", filter="data")
    top = tmp_path / "out" / "mine"
    lines = (top / "SHA256SUMS").read_text().splitlines()
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((top / name).read_bytes()).hexdigest() == digest, name
    files = {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()}
    assert files == {line.split("  ")[1] for line in lines} | {"SHA256SUMS"}
    summary = json.loads((top / "submission.json").read_text())
    assert (summary["complete"], len(summary["cases"])) == (True, 3)
    assert summary["cases"][1]["fingerprint"]["suite_code"] == "s1"
    assert any(name.endswith("rank0.out.log") for name in files)
    assert any(name.endswith("round1/plan.json") for name in files)
    assert "X9" in (top / "performance.md").read_text(encoding="utf-8")
    assert "already exists" in errors_of(capsys, "bundle", *submission(tmp_path / "again"), "--to", archive)[0]
    output_of(capsys, "bundle", tmp_path / "runs", "--to", tmp_path / "other" / "mine.tar.gz")
    assert (tmp_path / "other" / "mine.tar.gz").read_bytes() == archive.read_bytes()


def test_bundle_reports_all_problems_at_once(tmp_path: Path, capsys: Capture) -> None:
    changed = {"suite_code": "s2", "driver_code": "d1", "precision": "fp32", "key": "key-1"}
    first = {"scale": "small", "synthetic": True, "plan_fields": {"fingerprint": changed, "config": {}, "values": {}}}
    one, eight, sixteen = submission(tmp_path / "runs", {"1x1": first, "1x8": {"last": 0.7}})
    shutil.rmtree(sixteen)
    next(one.glob("*/round1/h0_noderank0/rank0.out.log")).unlink()
    archive = tmp_path / "mine.tar.gz"
    out = output_of(capsys, "bundle", one, eight, "--to", archive, code=1)
    for text in (
        "2x8 is missing",
        "1x1: got the small scale; expected reference",
        "1x1: got synthetic data",
        "1x1: round 1: no log of 1 of 1 rank",
        "1x1: round 1: plan.json contains no config",
        "1x8: no round reached the target",
        "suite_code differs between the shapes: s2 in 1x1, s1 in 1x8",
    ):
        assert f"problem: toy:pytorch:X9: {text}" in out
    assert not archive.exists()
    assert "incomplete" in output_of(capsys, "bundle", one, eight, "--to", archive, "--incomplete", code=1)
    with tarfile.open(archive) as packed:
        summary = packed.extractfile("mine/submission.json")
        assert summary is not None
        assert json.loads(summary.read())["complete"] is False


def test_parity_does_not_count_as_convergence(tmp_path: Path, capsys: Capture) -> None:
    half = make.parity("parity", lambda step: make.usual_loss(step) * 1.002)
    names = ("steps", "loss_at", "converged", "reason", "plan_fields")
    run, *_ = submission(tmp_path / "runs", {"1x1": {name: getattr(half, name) for name in names}})
    (case,) = store.load_run(run).cases
    assert case.ok
    only = ("--shapes=1x1", "--to", tmp_path / "all.tar.gz")
    out = output_of(capsys, "bundle", run, *only, code=1)
    assert "1x1: no round reached the target: parity_samples is set" in out
    output_of(capsys, "bundle", run, *only, "--incomplete", code=1)
    with tarfile.open(tmp_path / "all.tar.gz") as packed:
        summary = json.load(packed.extractfile("all/submission.json"))  # type: ignore[arg-type]
    assert [case["parity_samples"] for case in summary["cases"]] == [case.outcomes[0].parity_samples]


def test_of_a_folder_the_guides_runs_that_fit_are_packed_and_others_listed(tmp_path: Path, capsys: Capture) -> None:
    """Runs as the steps of docs/how-to-vendor.md leave them: small, synthetic, interrupted, repeated."""
    reports = tmp_path / "reports"
    submission(reports)
    same: dict[str, Any] = {"hardware": "X9", "vendor": "acme", "nproc": 8}
    old = shutil.copytree(reports / "run-1x8", reports / "run-0")
    shutil.copytree(reports / "run-1x1", reports / "run-3")
    run_of(reports / "run-4", scale="small", **same)
    run_of(reports / "run-5", scale="reference", synthetic=True, **same)
    run_of(reports / "run-6", "crashed_rank", scale="reference", **same)
    out = output_of(capsys, "bundle", reports, "--to", tmp_path / "mine.tar.gz")
    lines = [line for line in out.splitlines() if line.startswith("left out: ")]
    assert lines == [
        f"left out: {reports}/{name}: {reason}"
        for name, reason in (
            ("run-0", "a newer run has the same shapes"),
            ("run-1x1", "a newer run has the same shapes"),
            ("run-4", "small scale"),
            ("run-5", "synthetic data"),
            ("run-6", "no successful round"),
        )
    ]
    assert "3 runs, complete" in out
    assert errors_of(capsys, "bundle", reports, "--scale=small", "--shapes=2x2", "--to", tmp_path / "x.tar.gz")[-1] == (
        "no run has a successful round at the small scale on real data"
    )
    out = output_of(capsys, "bundle", old, *submission(tmp_path / "again"), "--to", tmp_path / "x.tar.gz", code=1)
    assert re.search("runs contain 1x8.*; pass only one of them\n", out)


def test_bundle_takes_other_shapes_and_the_small_scale(tmp_path: Path, capsys: Capture) -> None:
    add_case(tmp_path / "run", "converged_1x1")
    add_case(tmp_path / "run", "converged_1x2")
    finish(tmp_path / "run")
    options = ("--shapes=1x1,1x2", "--scale=small", "--to", tmp_path / "s.tar.gz")
    output_of(capsys, "bundle", tmp_path / "run", *options)
    assert "shape 'x'" in errors_of(capsys, "bundle", tmp_path / "run", "--shapes=x")[0]


def test_bundle_takes_no_figures_that_are_not_valid(tmp_path: Path, capsys: Capture) -> None:
    run = run_of(tmp_path / "run", "throttled")
    out = output_of(capsys, "bundle", run, "--shapes=1x2", "--scale=small", "--to", tmp_path / "s.tar.gz", code=1)
    assert "1x2: figures not valid: localhost: device 0 was slowed down" in out


def test_bundle_names_the_failure_of_a_round(tmp_path: Path, capsys: Capture) -> None:
    run = run_of(tmp_path / "run", "crashed_rank")
    out = output_of(capsys, "bundle", run, "--shapes=1x2", "--scale=small", "--to", tmp_path / "s.tar.gz", code=1)
    assert "1x2: no successful round: round 1: rank 1" in out


def test_an_archive_is_verified_as_its_runs_are(tmp_path: Path, capsys: Capture) -> None:
    archive, changed = tmp_path / "mine.tar.gz", tmp_path / "changed.tar.gz"
    output_of(capsys, "bundle", *submission(tmp_path / "runs"), "--to", archive)
    out = output_of(capsys, "verify", archive)
    assert f"{archive}:run-1x8: 1 round derived again: 0 differences" in out
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "out", filter="data")
    (tmp_path / "out/mine/run-1x8/toy_pytorch_X9_1_8_1/round1/round.json").write_text("{}")
    (tmp_path / "out/mine/performance.md").unlink()
    with tarfile.open(changed, "w:gz") as packed:
        packed.add(tmp_path / "out/mine", "mine")
    out = output_of(capsys, "verify", changed, code=1)
    assert f"difference: {changed}: performance.md is missing" in out
    assert f"difference: {changed}: run-1x8/toy_pytorch_X9_1_8_1/round1/round.json is not the file of SHA256SUMS" in out
    (tmp_path / "text").write_text("no archive")
    assert "not an archive of flagperf bundle" in errors_of(capsys, "verify", tmp_path / "text")[0]


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen on the PATH")
def test_a_signature_says_who_packed_an_archive(tmp_path: Path, capsys: Capture) -> None:
    for name in ("ci", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
        (tmp_path / f"{name}.signers").write_text(f"{name}@lab {(tmp_path / f'{name}.pub').read_text()}")
    archive, runs = tmp_path / "mine.tar.gz", submission(tmp_path / "runs")
    assert "--sign=nothing: no such file" in errors_of(capsys, "bundle", *runs, "--to", archive, "--sign=nothing")[0]
    output_of(capsys, "bundle", *runs, "--to", archive, "--sign", tmp_path / "ci")
    signed_by_ci = ("verify", archive, "--signers", tmp_path / "ci.signers")
    assert f"{archive}: signed by ci@lab with ED25519 key SHA256:" in output_of(capsys, *signed_by_ci)
    wrong = errors_of(capsys, "verify", archive, "--signers", tmp_path / "other.signers")
    assert "No principal matched.; expected the signature of a key in" in wrong[0]
    with archive.open("ab") as file:
        file.write(b"\0")
    assert "not what ci@lab signed" in errors_of(capsys, *signed_by_ci)[0]
    Path(f"{archive}.sig").unlink()
    assert "mine.tar.gz.sig: no such file" in errors_of(capsys, *signed_by_ci)[0]
    assert "needs an archive" in errors_of(capsys, "verify", *runs, "--signers", tmp_path / "ci.signers")[0]


def test_one_card_of_a_run_that_is_not_packed_does_not_count(tmp_path: Path, capsys: Capture) -> None:
    runs = submission(tmp_path / "runs")
    store.save_one_card(next(runs[1].glob("toy*")), OneCard.of([1.0], "stored in run-0/toy/round1", "images/s"))
    finish(runs[1])
    out = output_of(capsys, "bundle", *runs, "--to", tmp_path / "mine.tar.gz", code=1)
    assert "1x8: the figure of one card for its speed-up is stored in run-0/" in out
