"""The code as it was brought to a host, and how a module of it is run."""

from __future__ import annotations

from pathlib import Path

CODE_ROOT = Path(__file__).resolve().parents[2]

_RUN_MODULE = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_argv(python: str, code_root: str, module: str) -> list[str]:
    """A staged module's argv: isolated, so that neither the current folder nor site-packages is on its path."""
    return [python, "-I", "-S", "-c", _RUN_MODULE, code_root, module]
