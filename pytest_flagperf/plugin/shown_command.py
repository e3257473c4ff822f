"""The command of a run as it is stored and shown: values of pytest's own options may be secret."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flagperf.settings import Settings

_SELECTING = {"keyword": "-k", "markexpr": "-m", "numprocesses": "-n"}
"""The options of pytest and pytest-xdist that are shown, by their names in pytest's configuration."""


def shown_command(chosen: argparse.Namespace, settings: Settings) -> list[str]:
    """Return the arguments of pytest that run the same tests with the same settings, without secret values."""
    from pytest_flagperf.settings import COMMAND_LINE_OPTIONS

    words = [*chosen.file_or_dir]
    for key, name in _SELECTING.items():
        words += [name, str(value)] if (value := getattr(chosen, key, None)) else []
    for option in COMMAND_LINE_OPTIONS:
        if settings.commanded(option.key):
            value = getattr(settings, option.key)
            if option.flag:
                words.append(f"--{'' if value else 'no-'}{option.name}")
            else:
                words += [f"--{option.name}={option.shown(one)}" for one in (value if option.many else (value,))]
    return words
