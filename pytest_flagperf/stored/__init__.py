"""What a run leaves on disk: the common reader and writer of its files."""

from __future__ import annotations

from .files import FormatError, WriteError, listed, make_folder, need, read, sayable, write, write_text, writing

__all__ = [
    "FormatError",
    "WriteError",
    "listed",
    "make_folder",
    "need",
    "read",
    "sayable",
    "write",
    "write_text",
    "writing",
]
