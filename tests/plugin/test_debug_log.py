"""The log of what the harness does, for users who look for a fault: logger ``flagperf``, shown by pytest's options."""

import pytest

from .conftest import Toy

pytestmark = pytest.mark.integration


def test_the_log_names_hosts_programs_messages_and_rounds_and_a_failed_test_shows_its_level(toy: Toy) -> None:
    toy.suite("wrong", base='fault = "nan"\n')
    arguments = ("suites", "-k", "wrong", "--nodes=1x1", "--log-file=debug.log", "--log-file-level=DEBUG")
    result = toy.run(*arguments, "--log-level=INFO")
    lines = (toy.root / "debug.log").read_text().splitlines()
    for expected in (
        "localhost: open ", "localhost: sent hello", "localhost: received leased", "localhost: interpreter ",
        "wrong_plain_CPU_1_1_1 round1: localhost: devices [0]", "wrong_plain_CPU_1_1_1 round1: finished",
    ):  # fmt: skip
        assert any(expected in line for line in lines), expected
    assert "round1: localhost: devices [0]" in result.stdout.str()
    assert "localhost: sent" not in result.stdout.str()
