"""The log of what the harness does, for users who look for a fault: logger ``flagperf``, shown by pytest's options."""

from __future__ import annotations

import pytest

from .conftest import Toy

pytestmark = pytest.mark.integration


def test_the_log_names_hosts_programs_messages_and_rounds(toy: Toy) -> None:
    toy.run("suites", "-k", "alpha", "--nodes=1x1", "--log-file=debug.log", "--log-file-level=DEBUG")
    lines = (toy.root / "debug.log").read_text().splitlines()
    for expected in (
        "localhost: start ",
        "localhost: sent hello",
        "localhost: received leased",
        "localhost: interpreter ",
        "alpha_plain_CPU_1_1_1 round1: localhost: devices [0]",
        "alpha_plain_CPU_1_1_1 round1: finished",
    ):
        assert any(expected in line for line in lines), expected


def test_without_a_level_the_log_is_not_shown(toy: Toy) -> None:
    toy.suite("wrong", base='fault = "nan"\n')
    result = toy.run("suites", "-k", "wrong", "--nodes=1x1")
    assert result.ret == 1
    assert "localhost: start" not in result.stdout.str()


def test_with_a_level_a_failed_test_shows_the_log(toy: Toy) -> None:
    toy.suite("wrong", base='fault = "nan"\n')
    result = toy.run("suites", "-k", "wrong", "--nodes=1x1", "--log-level=INFO")
    assert "round1: localhost: devices [0]" in result.stdout.str()
    assert "localhost: sent" not in result.stdout.str()
