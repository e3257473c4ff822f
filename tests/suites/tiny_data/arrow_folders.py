"""MLPerf's data of FLUX.1: Arrow folders, as ``datasets`` saves them, of encoded pictures and texts.

The columns are those of MLPerf's ``preprocess_flux_dataset.py``; a binary value is what ``numpy.save`` writes of the
bits of bfloat16. The framework's environment has no pyarrow, so the Arrow streams are written by hand;
``tests/suites/test_arrow_folders.py`` reads them with pyarrow.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TRAIN, EVALUATION, EMPTY = "cc12m_preprocessed", "coco_preprocessed", "empty_encodings"
WORDS, TEXT, POOLED, CHANNELS, SIDE = 3, 8, 6, 2, 4
SMALLER = {
    "latent_channels": CHANNELS, "latent_side": SIDE, "text_tokens": WORDS, "text_size": TEXT, "pooled_size": POOLED,
    "hidden_size": 32, "num_heads": 2, "num_double_blocks": 1, "num_single_blocks": 1, "rope_axes": [4, 6, 6],
    "time_waves": 32, "train_batch_size": 16, "eval_batch_size": 8, "gradient_accumulation_steps": 1,
    "learning_rate": 1e-2, "lr_warmup": 0, "parallel": "ddp", "num_workers": 0, "eval_samples": None,
}  # fmt: skip
"""The config of a transformer that learns these pictures in a few seconds."""
COLUMNS = {"__key__": 5, "t5_encodings": 4, "clip_encodings": 4, "mean": 4, "logvar": 4, "timestep": 2}
"""The columns, and the numbers of their types: 5 is text, 4 bytes, 2 a number of 32 bits."""


def write(folder: Path) -> None:
    """Write two classes of pictures; the text names the class, and its pictures are bright or dark."""
    rng = np.random.default_rng(7)
    for name, count, is_training in ((TRAIN, 64, True), (EVALUATION, 24, False)):
        write_folder(folder / name, [picture(rng, index, is_training=is_training) for index in range(count)], 20)
    empty = folder / EMPTY
    empty.mkdir(parents=True, exist_ok=True)
    np.save(empty / "t5_empty.npy", np.zeros((1, WORDS, TEXT), np.float16))
    np.save(empty / "clip_empty.npy", np.zeros((1, POOLED), np.float16))


def picture(rng: np.random.Generator, index: int, *, is_training: bool) -> dict[str, Any]:
    """Return a row; a row for the training has no time step."""
    side = 1.0 if index % 2 else -1.0
    return {
        "__key__": f"{index:09d}",
        "t5_encodings": saved(np.full((WORDS, TEXT), side)),
        "clip_encodings": saved(np.full(POOLED, side)),
        "mean": saved(side * 4 + 0.1 * rng.standard_normal((CHANNELS, SIDE, SIDE))),
        "logvar": saved(np.full((CHANNELS, SIDE, SIDE), -6.0)),
        "timestep": None if is_training else index % 8,
    }


def bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16; values are finite."""
    whole = np.ascontiguousarray(values, "<f4").view("<u4")
    return ((whole + 0x7FFF + (whole >> 16 & 1)) >> 16).astype("<u2")


def saved(values: npt.NDArray[Any]) -> bytes:
    content = io.BytesIO()
    np.save(content, bits(values))
    return content.getvalue()


def write_folder(folder: Path, rows: Sequence[dict[str, Any]], rows_per_file: int) -> None:
    """Write a dataset of some files."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [rows[first : first + rows_per_file] for first in range(0, len(rows), rows_per_file)]
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        half = (len(part) + 1) // 2
        (folder / name).write_bytes(stream([part[:half], part[half:]]))
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_format_columns": None,
        "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": None,
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


# -- a stream of Arrow ---------------------------------------------------------------------------------------


def stream(batches: Iterable[Sequence[dict[str, Any]]]) -> bytes:
    """Return the schema, the batches and the mark of the end."""
    kinds = {4: table(), 5: table(), 2: table(("<i", 32), ("<B", 1))}
    fields = [table(name, ("<B", 1), ("<B", kind), kinds[kind], None, []) for name, kind in COLUMNS.items()]
    content = message(1, table(("<h", 0), fields), b"")
    for rows in batches:
        nodes, buffers, body = [], [], b""
        for name, kind in COLUMNS.items():
            values = [row[name] for row in rows]
            nodes.append((len(rows), values.count(None)))
            for part in parts(values, kind):
                buffers.append((len(body), len(part)))
                body += part + bytes(-len(part) % 64)
        content += message(3, table(("<q", len(rows)), nodes, buffers), body)
    return content + struct.pack("<Ii", 0xFFFFFFFF, 0)


def parts(values: Sequence[Any], kind: int) -> list[bytes]:
    """Return the buffers of a column: the bits of valid rows if a value is missing, places of bytes, the values."""
    valid = np.packbits([value is not None for value in values], bitorder="little").tobytes()
    first = valid if None in values else b""
    if kind == 2:
        return [first, struct.pack(f"<{len(values)}i", *(value or 0 for value in values))]
    texts = [b"" if value is None else value.encode() if isinstance(value, str) else value for value in values]
    ends = np.cumsum([0, *map(len, texts)]).astype("<i4")
    return [first, ends.tobytes(), b"".join(texts)]


def message(kind: int, header: Any, body: bytes) -> bytes:
    """Return an encapsulated message of the version V5."""
    metadata = flat(table(("<h", 4), ("<B", kind), header, ("<q", len(body))))
    metadata += bytes(-len(metadata) % 8)
    return struct.pack("<Ii", 0xFFFFFFFF, len(metadata)) + metadata + body


# -- FlatBuffers -----------------------------------------------------------------------------------------------


class Table(list[Any]):
    """The fields of a table in their order: numbers with their types, texts, tables, vectors; None is missing."""


def table(*fields: Any) -> Table:
    return Table(fields)


def flat(root: Table) -> bytes:
    """Return a buffer with the root; what a place refers to follows it, and all of it begins at a multiple of 8."""
    content = bytearray(8)
    struct.pack_into("<I", content, 0, put(content, root))
    return bytes(content)


def put(content: bytearray, value: Any) -> int:
    """Append a table, a text or a vector; return its place."""
    content += bytes(-len(content) % 8)
    if isinstance(value, Table):
        return _put_table(content, value)
    place = len(content)
    if isinstance(value, str):
        content += struct.pack("<I", len(value)) + value.encode() + b"\0"
        return place
    if value and isinstance(value[0], tuple):  # structures of two numbers begin at a multiple of 8
        content += bytes(4)
        place = len(content)
        content += struct.pack("<I", len(value))
        content += b"".join(struct.pack("<qq", *pair) for pair in value)
        return place
    content += struct.pack("<I", len(value)) + bytes(4 * len(value))
    for number, element in enumerate(value):
        at = place + 4 + 4 * number
        struct.pack_into("<I", content, at, put(content, element) - at)
    return place


def _put_table(content: bytearray, fields: Table) -> int:
    start = len(content)
    size = 4 + 2 * len(fields)
    content += bytes(size + (-size) % 8)
    place = len(content)
    content += bytes(4)
    offsets, references = [], []
    for field in fields:
        if field is None:
            offsets.append(0)
            continue
        kind = field[0] if isinstance(field, tuple) else "<I"
        content += bytes(-len(content) % struct.calcsize(kind))
        offsets.append(len(content) - place)
        if isinstance(field, tuple):
            content += struct.pack(kind, field[1])
        else:
            references.append((len(content), field))
            content += bytes(4)
    struct.pack_into(f"<HH{len(offsets)}H", content, start, size, len(content) - place, *offsets)
    struct.pack_into("<i", content, place, place - start)
    for at, field in references:
        struct.pack_into("<I", content, at, put(content, field) - at)
    return place
