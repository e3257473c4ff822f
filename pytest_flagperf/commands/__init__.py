"""The ``flagperf`` command: reads stored runs. One module per command.

Packages add commands, those of our wheel and installed ones.

Exit codes: 0, success; 1, the command found a problem, such as a regression; 2, the command failed.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from pytest_flagperf import __version__
from pytest_flagperf.commands import accept, show
from pytest_flagperf.packages import advice
from pytest_flagperf.printable import printable
from pytest_flagperf.problems import Problems, near
from pytest_flagperf.results.tables.frames import RunWarning
from pytest_flagperf.stored import FormatError

COMMANDS: dict[str, ModuleType] = {
    "show": show,
    "accept": accept,
}
SUCCESS, PROBLEM_FOUND, COMMAND_FAILED = 0, 1, 2
_PIPE_CLOSED = 141
_WRONG_KIND = {
    errno.EEXIST: "expected a folder, got a file",
    errno.ENOTDIR: "a parent of this path is a file, not a folder",
    errno.EISDIR: "expected a file, got a folder",
}
_EPILOG = (
    f"exit codes: {SUCCESS} success; {PROBLEM_FOUND} the command found a problem, such as a regression;"
    f" {COMMAND_FAILED} the command failed"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of ``flagperf``; return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    first = words[0] if words else ""
    try:
        commands = COMMANDS if first in COMMANDS else all_commands()
        if first and not first.startswith("-"):
            _check_names(first, words[1:], commands)
    except Problems as error:
        _print_error(str(error))
        return COMMAND_FAILED
    arguments = parser(commands).parse_args(words)
    return run_guarded(arguments.command.run, arguments)


def all_commands() -> dict[str, ModuleType]:
    """Return all commands by name: also those of packages, of our wheel and others."""
    from pytest_flagperf.hooks import Command  # the other commands need no package
    from pytest_flagperf.hooks.plugins import named

    found = named("flagperf_commands", Command, COMMANDS)
    return {**COMMANDS, **{name: command.module for name, (_, command) in found.items()}}


def _check_names(name: str, words: Sequence[str], commands: Mapping[str, ModuleType]) -> None:
    """Raise Problems for an unknown command, or for options that the command does not have."""
    if name not in commands:
        hint, part = near(name, commands) or f"; choose from {', '.join(commands)}", advice(name)
        raise Problems([f"{name} is a package of its own; {part}" if part else f"{name}: unknown command{hint}"])
    command = argparse.ArgumentParser()
    commands[name].add_arguments(command)
    known = ["--help", *re.findall(r"--[\w-]+", command.format_usage())]
    given = [word.partition("=")[0] for word in words if re.match("--.", word)]
    unknown = [option for option in given if not any(other.startswith(option) for other in known)]
    if unknown:
        choices = f"; choose from {', '.join(known)}"
        raise Problems(f"{option}: unknown option{near(option, known) or choices}" for option in unknown)


def run_guarded(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run a command; print a user's mistakes to stderr, all of them at once."""
    if sys.stdout is None:  # the descriptor is closed
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file name may contain bytes that are not UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RunWarning)
            warnings.showwarning = _print_note
            code = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output closed the pipe; without this Python prints an error when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except (Problems, FormatError) as error:
        _print_error(str(error))
        return COMMAND_FAILED
    except OSError as error:
        # When a rename fails, the second name is the user's; the first is a temporary file.
        where = error.filename2 or error.filename or "a file"
        _print_error(f"{where}: {_WRONG_KIND.get(error.errno or 0) or error.strerror or error}")
        return COMMAND_FAILED
    except KeyboardInterrupt:
        _print_error("interrupted")
        return COMMAND_FAILED
    return code


def parser(modules: Mapping[str, ModuleType] = COMMANDS) -> argparse.ArgumentParser:
    main_parser = argparse.ArgumentParser(
        prog="flagperf",
        description="List suites and vendors, and read the results of stored runs. To start a run, use pytest.",
        epilog=_EPILOG,
    )
    main_parser.add_argument("--version", action="version", version=f"pytest-flagperf {__version__}")
    commands = main_parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module in modules.items():
        about = (module.__doc__ or name).strip().replace("``", "")  # without a docstring under PYTHONOPTIMIZE=2
        example = f"example: flagperf {name} {module.EXAMPLE}" if hasattr(module, "EXAMPLE") else None
        command = commands.add_parser(name, help=about.splitlines()[0].rstrip("."), description=about, epilog=example)
        module.add_arguments(command)
        command.set_defaults(command=module)
    return main_parser


def _print_error(text: str) -> None:
    for line in printable(text).splitlines():
        print(f"flagperf: {line}", file=sys.stderr)


def _print_note(message: Warning | str, *_: object, **__: object) -> None:
    _print_error(f"note: {message}")
