"""Vendors that change more than their folder may: each of these attempts ends refused or visibly marked."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    assert "known problem 1: the loss stays high" in toy.run("suites/alpha", "--nodes=1x1", "--plan").stdout.str()


def _page(toy: Toy) -> str:
    page: Path = toy.runs[-1] / "report.html"
    return page.read_text(encoding="utf-8")
