"""Load NVML's library and call it."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Callable, Sequence

MIB = 1 << 20
NEVER = (2, 3, 4, 13, 25)  # permanent errors: argument, not supported, no permission, function or version unknown


class NvmlError(RuntimeError):
    """NVML cannot be used; the text is the reason."""


def load() -> Any:
    """Import pynvml and initialize NVML."""
    library = os.path.join(os.path.dirname(__file__), "..", "..", "..", "..", "lib")  # noqa: PTH118, PTH120
    path = os.path.abspath(library)  # noqa: PTH100
    if path not in sys.path and os.path.isdir(path):  # noqa: PTH112
        sys.path.append(path)
    try:
        nvml = importlib.import_module("pynvml")
    except (ImportError, SyntaxError, AttributeError, OSError) as error:
        raise NvmlError(f"NVML: the pynvml module cannot be imported: {error}") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from None
    return nvml


def ask(nvml: Any, call: Callable[..., Any], *values: Any, forgiven: Sequence[int] | None = None) -> Any:
    """Call an NVML function; return None on an error. With ``forgiven``, raise all errors but these."""
    try:
        return call(*values)
    except nvml.NVMLError as error:
        if forgiven is not None and error.value not in forgiven:
            raise
        return None


def text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
