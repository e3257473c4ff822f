"""Read and write the stored files of a run."""

from __future__ import annotations

from .files import (
    FormatError,
    WriteError,
    check_schema,
    make_folder,
    objects,
    read,
    read_printable,
    to_json_types,
    write,
    write_text,
    write_texts,
    writing,
)

__all__ = [
    "FormatError",
    "WriteError",
    "check_schema",
    "make_folder",
    "objects",
    "read",
    "read_printable",
    "to_json_types",
    "write",
    "write_text",
    "write_texts",
    "writing",
]
