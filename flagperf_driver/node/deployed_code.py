"""The deployed code on a host, and the command line that runs one of its modules."""

from __future__ import annotations

from pathlib import Path

CODE_ROOT = Path(__file__).resolve().parents[2]

_RUN_MODULE = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_argv(python: str, code_root: str, module: str) -> list[str]:
    """Return the argv of a deployed module: isolated, without the current folder and site-packages on its path."""
    return [python, "-I", "-S", "-c", _RUN_MODULE, code_root, module]
