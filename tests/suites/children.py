"""Call a function for each suite in a child of this process, one child at a time.

The children share the framework's imports, which take seconds. They do not share the modules of the suites, whose names
are equal.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
MARK = "RESULT "
"""Begins a line of results; frameworks print other lines."""
SHARED = ("torch", "torch._dynamo", "torchvision")


def print_results(function: Callable[..., Any], arguments: str) -> None:
    """Print a line for each suite when it is done: MARK, and a JSON list of the suite and its result.

    The result is null after an error, which is printed to stderr. ``arguments`` is a JSON object: by suite, the list
    of the function's further arguments.
    """
    for name in SHARED:
        with suppress(ImportError):
            importlib.import_module(name)
    for suite, given in json.loads(arguments).items():
        print(MARK + json.dumps([suite, _result(function, Path(suite).resolve(), *given)]), flush=True)


def _result(function: Callable[..., Any], suite: Path, *arguments: Any) -> Any:
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)

    def call() -> None:
        use_modules_of(suite)
        sender.send(function(suite, *arguments))

    child = fork.Process(target=call, name=str(suite))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return None
    finally:
        child.join()


def use_modules_of(suite: Path) -> None:
    """Make the modules of the repository, of the shared code and of the suite importable."""
    folders = [str(REPO), str(suite.parents[1]), str(suite)]
    sys.path[:] = [*folders, *(folder for folder in sys.path if folder not in folders)]
