"""The command-line options."""

from __future__ import annotations

import argparse
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options in their groups; settings/options.py defines them."""
    from pytest_flagperf.settings import COMMAND_LINE_OPTIONS, GROUPS

    groups = {title: parser.getgroup(title) for title in GROUPS}
    for option in COMMAND_LINE_OPTIONS:
        keywords: dict[str, Any] = {"dest": f"flagperf_{option.key}", "help": option.help}
        if option.flag:
            keywords |= {"action": argparse.BooleanOptionalAction, "default": None}
        else:
            keywords |= {"action": "append" if option.many else "store", "metavar": option.metavar, "default": None}
            keywords |= {"type": type(option.default)} if isinstance(option.default, (int, float)) else {}
            keywords |= {"choices": option.choices, "metavar": None} if option.choices else {}
        groups[option.group].addoption(f"--{option.name}", **keywords)


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Report unknown options with a suggestion; trylast, so that the options of conftest.py are known."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.settings import check_unknown

    _, unknown = parser.parse_known_and_unknown_args(args)
    try:
        check_unknown(unknown, args, early_config.rootpath)
    except Problems as problems:
        raise pytest.UsageError(str(problems)) from problems


def command_line(config: pytest.Config) -> dict[str, Any]:
    """Return the values of pytest-flagperf's options by key; None if an option was not passed."""
    prefix = "flagperf_"
    return {name.removeprefix(prefix): value for name, value in vars(config.option).items() if name.startswith(prefix)}
