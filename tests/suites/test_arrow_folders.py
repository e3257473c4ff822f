"""FLUX.1's reader of Arrow folders and pyarrow read the same rows, whoever wrote them."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.suites.tiny_data import arrow_folders as tiny

SUITES = Path(__file__).parents[2] / "suites"
SCHEMA = pa.schema(
    [("__key__", pa.string()), *((name, pa.binary()) for name in list(tiny.COLUMNS)[1:5]), ("timestep", pa.int32())]
)
Rows = list[dict[str, Any]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Rows]]:
    """A function that returns all rows of a folder by the suite's reader, which needs no framework."""
    monkeypatch.syspath_prepend(str(SUITES))
    monkeypatch.syspath_prepend(str(SUITES / "flux1/pytorch"))
    from arrow_folder import ArrowFolder

    def rows(folder: Path) -> Rows:
        found = ArrowFolder(folder, [*tiny.COLUMNS])
        texts = (found.read(number) for number in range(len(found)))
        return [{**row, "__key__": row["__key__"].decode()} for row in texts]

    yield rows
    for name in ("arrow_folder", "common.shares", "common"):
        sys.modules.pop(name, None)


def written() -> Rows:
    rng = np.random.default_rng(1)
    return [tiny.picture(rng, number, is_training=number % 3 == 0) for number in range(50)]


def test_pyarrow_reads_the_tiny_data(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path, written(), 20)
    found: Rows = []
    for path in sorted(tmp_path.glob("*.arrow")):
        with pa.OSFile(str(path)) as source:
            table = pa.ipc.open_stream(source).read_all()
        table.validate(full=True)
        assert table.schema == SCHEMA
        found += table.to_pylist()
    assert found == written()


@pytest.mark.parametrize("large", [False, True], ids=["places of 32 bits", "places of 64 bits"])
def test_the_suite_reads_what_pyarrow_writes(tmp_path: Path, read: Callable[[Path], Rows], large: bool) -> None:
    schema = SCHEMA
    if large:
        kinds = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
        schema = pa.schema([(field.name, kinds.get(field.type, field.type)) for field in SCHEMA])
    save(tmp_path, written(), schema)
    assert read(tmp_path) == written()
    assert read(tmp_path) != written()[::-1], "the control"


def test_what_cannot_be_read_is_named(tmp_path: Path, read: Callable[[Path], Rows]) -> None:
    from common.shares import SourceError

    save(tmp_path, written(), SCHEMA, compression="lz4")
    with pytest.raises(SourceError, match=r"second\.arrow: compressed batches; save the dataset again"):
        read(tmp_path)
    save(tmp_path, written(), pa.schema([*list(SCHEMA)[:5], ("timestep", pa.float32())]))
    with pytest.raises(SourceError, match="column 'timestep' has a type of number 3; expected text, bytes or whole"):
        read(tmp_path)
    save(tmp_path, written(), SCHEMA)
    first = tmp_path / "first.arrow"
    first.write_bytes(first.read_bytes()[:-8])  # cut between two messages
    with pytest.raises(SourceError, match=r"first\.arrow: ends after [0-9]+ bytes without the mark of its end; copy"):
        read(tmp_path)


def save(folder: Path, rows: Rows, schema: pa.Schema, compression: str | None = None) -> None:
    """Write two files in batches of seven rows; the order is that of the state, not of the names."""
    names = ["second.arrow", "first.arrow"]
    for name, part in zip(names, (rows[:30], rows[30:]), strict=True):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with (
            pa.OSFile(str(folder / name), "wb") as sink,
            pa.ipc.new_stream(sink, schema, options=options) as stream,
        ):
            stream.write_table(pa.Table.from_pylist(part, schema=schema), max_chunksize=7)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
