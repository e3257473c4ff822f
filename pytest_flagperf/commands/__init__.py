"""``flagperf``, the small command line: what is there to run, and what was stored. One file per command.

Exit codes: 0, it was done; 1, it was done and what was asked about is not well; 2, it could not be done.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType

from pytest_flagperf.commands import accept, bundle, compare, export, mllog, reference, report, show, table
from pytest_flagperf.commands import list as list_
from pytest_flagperf.commands.source_tree import affected, import_vendor, new_vendor, readme
from pytest_flagperf.printable import printable
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.frames import RunWarning, TablesMissing
from pytest_flagperf.stored import FormatError

COMMANDS: dict[str, ModuleType] = {
    "list": list_,
    "new-vendor": new_vendor,
    "import-vendor": import_vendor,
    "affected": affected,
    "show": show,
    "report": report,
    "compare": compare,
    "accept": accept,
    "table": table,
    "readme": readme,
    "export": export,
    "mllog": mllog,
    "reference": reference,
    "bundle": bundle,
}
WELL, NOT_WELL, NOT_DONE = 0, 1, 2
_PIPE_CLOSED = 141
_WRONG_KIND = {
    errno.EEXIST: "is a file; a folder is wanted",
    errno.ENOTDIR: "is below a file; a folder is wanted there",
    errno.EISDIR: "is a folder; a file is wanted",
}
_EPILOG = f"exit codes: {WELL} done, {NOT_WELL} done and what was asked about is not well, {NOT_DONE} could not be done"


def main(argv: Sequence[str] | None = None) -> int:
    """A user's mistake is told in sentences on stderr, all of them at once."""
    arguments = parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The name of a file may hold bytes that are not UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RunWarning)
            warnings.showwarning = _told
            code: int = arguments.command.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except (Problems, FormatError, TablesMissing) as error:
        _complain(str(error))
        return NOT_DONE
    except OSError as error:
        # Of a renaming the second name is the user's, the first a temporary one.
        where = error.filename2 or error.filename or "a file"
        _complain(f"{where}: {_WRONG_KIND.get(error.errno or 0) or error.strerror or error}")
        return NOT_DONE
    except KeyboardInterrupt:
        _complain("interrupted")
        return NOT_DONE
    return code


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="flagperf",
        description="What there is to run, and what runs left. Runs themselves are started with pytest.",
        epilog=_EPILOG,
    )
    made.add_argument("--version", action="version", version=f"pytest-flagperf {version('pytest-flagperf')}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        about = (module.__doc__ or "").strip()
        added = commands.add_parser(name, help=about.splitlines()[0].rstrip("."), description=about, epilog=_EPILOG)
        module.add_arguments(added)
        added.set_defaults(command=module)
    return made


def _complain(text: str) -> None:
    for line in printable(text).splitlines():
        print(f"flagperf: {line}", file=sys.stderr)


def _told(message: Warning | str, *_: object, **__: object) -> None:
    _complain(f"note: {message}")
