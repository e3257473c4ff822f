"""What a run leaves on disk: the common reader and writer of its files."""

from __future__ import annotations

from .files import (
    FormatError,
    WriteError,
    check_schema,
    listed,
    make_folder,
    need,
    objects,
    read,
    read_printable,
    sayable,
    write,
    write_text,
    writing,
)

__all__ = [
    "FormatError",
    "WriteError",
    "check_schema",
    "listed",
    "make_folder",
    "need",
    "objects",
    "read",
    "read_printable",
    "sayable",
    "write",
    "write_text",
    "writing",
]
