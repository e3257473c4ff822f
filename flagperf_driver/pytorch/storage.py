"""Write tensors into the files of a checkpoint and read them, by torch.distributed.checkpoint.

The files belong to no layout: each rank writes its shards, and a training with other shards reads what it needs.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, Dict, Mapping

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint import metadata

from flagperf_driver.training.checkpoint import CheckpointError

Tensors = Dict[str, torch.Tensor]
_OTHERS = {
    ("torch", "Size"), ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"), ("pathlib", "PosixPath"),
}  # fmt: skip
"""What the table of a checkpoint's tensors refers to, beside the classes of ``metadata`` and types of numbers."""
# A single rank has no process group.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")


def write(folder: Path, tensors: Tensors, group: Any) -> None:
    """Write all ranks' tensors; every rank of ``group`` calls it. It returns when all ranks have written theirs."""
    checkpoint.save(tensors, storage_writer=checkpoint.FileSystemWriter(folder), process_group=group)


def check(folder: Path) -> None:
    """Raise an error if a rank's file is not in the folder: its host has written it to another one."""
    places = _TableReader(folder).read_metadata().storage_data.values()
    missing = sorted({place.relative_path for place in places if not (folder / place.relative_path).is_file()})
    if missing:
        raise CheckpointError(
            f"{folder}: {', '.join(missing[:3])} of another rank not found; checkpoint_dir must be shared by all hosts"
        )


def read(folder: Path, into: Tensors, group: Any) -> None:
    """Read values into these tensors, in place; every rank of ``group`` calls it with the same names."""
    checkpoint.load(into, storage_reader=_TableReader(folder), process_group=group)


def stored(folder: Path) -> Mapping[str, metadata.TensorStorageMetadata]:
    """Return size and type of each stored tensor."""
    table: Mapping[str, Any] = _TableReader(folder).read_metadata().state_dict_metadata
    for name, entry in table.items():
        if not isinstance(entry, metadata.TensorStorageMetadata):
            raise CheckpointError(f"{folder}: {name} is stored as {type(entry).__name__}; expected a tensor")
    return table


class _TableReader(checkpoint.FileSystemReader):  # type: ignore[misc]
    """Reads the table of a checkpoint without running any code in it."""

    def read_metadata(self, *_: Any, **__: Any) -> metadata.Metadata:
        with Path(self.path, ".metadata").open("rb") as stream:
            table: metadata.Metadata = _Table(stream).load()
        return table


class _Table(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        own = module == metadata.__name__ and isinstance(vars(metadata).get(name), type)
        if own or (module, name) in _OTHERS or (module == "torch" and isinstance(vars(torch).get(name), torch.dtype)):
            return super().find_class(module, name)
        raise CheckpointError(f"the table of a checkpoint refers to {module}.{name}, which no checkpoint contains")
