"""Vendors that change more than their folder may: each of these attempts ends refused or visibly marked."""

import shutil
from pathlib import Path

import pytest

from pytest_flagperf.commands import main
from pytest_flagperf.results.tables.published import load
from pytest_flagperf.stored import FormatError
from tests.plugin.conftest import Toy, toy

pytestmark = pytest.mark.slow
__all__ = ["toy"]


def test_a_vendor_excuses_no_verdict(toy: Toy) -> None:
    vendor = toy.root / "vendors" / "cpu" / "vendor.toml"
    honest = vendor.read_text()
    with vendor.open("a") as file:
        file.write('[[expected]]\ncase = "*"\nverdict = "*"\nreason = "new hardware"\n')
    refused = toy.run("suites/alpha", "--nodes=1x1", "--set=learning_rate=0")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*vendor.toml:*expected: a vendor's folder excuses no verdict*known_problem*"])
    vendor.write_text(honest + '[[known_problem]]\ncase = "*"\ntext = "the loss stays high"\n')
    stated = toy.run("suites/alpha", "--nodes=1x1", "--set=learning_rate=0")
    assert stated.ret == pytest.ExitCode.TESTS_FAILED
    stated.stdout.fnmatch_lines(["known problem, stated by the vendor: alpha:plain:CPU:1:1:1: the loss stays high"])
    assert "the loss stays high" in _page(toy)
    assert "known problem 1: the loss stays high" in toy.run("suites/alpha", "--nodes=1x1", "--plan", "-v").stdout.str()


def test_a_chip_that_no_device_reported_gives_no_figure(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    (toy.root / "data").mkdir()
    toy.config("alpha", "1x1", "train_batch_size = 4\n")
    result = toy.run("suites/alpha", "--vendor=acme", "--nodes=1x1", "--data-dir=data")
    assert result.ret == 0
    text = " ".join(result.stdout.str().split())
    assert "flagperf: 1 of 1 case passed, chip not verified in 1 case" in text
    why = "X1: localhost: the framework's device is cpu, and the processor is "
    assert f"alpha:plain:X1:1:1:1</a>: {why}" in _page(toy).replace("&#x27;", "'")
    reason = f"chip not verified: {why}"
    run = str(toy.runs[-1])
    assert main(["accept", run]) == 1
    assert f"not accepted: alpha:plain:X1:1:1:1: {reason}" in capsys.readouterr().out
    assert main(["export", run, "--format=markdown"]) == 0
    assert f"Not listed: alpha:plain:X1:1:1:1: {reason}" in (toy.runs[-1] / "performance.md").read_text()
    capsys.readouterr()
    assert main(["bundle", run, "--shapes=1x1", f"--to={toy.root}/a.tar.gz"]) == 1
    assert f"problem: alpha:plain:X1: 1x1: {reason}" in capsys.readouterr().out
    published = toy.root / "reports" / "published" / "first"
    published.mkdir(parents=True)
    for name in ("results.json", "SHA256SUMS"):
        shutil.copy(toy.runs[-1] / name, published)
    with pytest.raises(FormatError, match=r"chip not verified: X1: .*publish only figures of a chip"):
        load(published.parent)


def test_a_vendor_that_replaces_another_is_said_in_the_headline(toy: Toy) -> None:
    """The conftest.py gives the tree what the wheel has: vendors of the same names."""
    wheel = toy.root / "wheel"
    shutil.copytree(toy.root / "vendors", wheel / "vendors")
    (toy.root / "conftest.py").write_text(
        "from pathlib import Path\n"
        "from pytest_flagperf.catalog import roots\n"
        f"roots.bundled = lambda: Path({str(wheel)!r})\n"
    )
    result = toy.run("suites/alpha", "--nodes=1x1")
    text = " ".join(result.stdout.str().split())
    assert "flagperf: 1 of 1 case passed, vendor replaced in 1 case" in text
    assert "vendor replaced: alpha:plain:CPU:1:1:1: the folder of cpu replaces the vendor of pytest-flagperf" in text
    assert "vendor replaced in 1 case" in _page(toy)
    planned = toy.run("suites/alpha", "--nodes=1x1", "--plan", "-v").stdout.str()
    assert "its folder replaces the vendor cpu of" in planned


def _page(toy: Toy) -> str:
    page: Path = toy.runs[-1] / "report.html"
    return page.read_text(encoding="utf-8")
