"""The training data of a case in OBS, checked before a job starts."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flagperf.catalog import DataItem

from .obs import Obs
from .obs_path import ObsFolder

_FOLDER = "folder"


def data_problems(obs: Obs, folder: ObsFolder, manifest: Sequence[DataItem]) -> list[str]:
    """Return a sentence for each part of the data that is missing or has another size."""
    return [problem for item in manifest if (problem := _problem(obs, folder, item)) is not None]


def _problem(obs: Obs, folder: ObsFolder, item: DataItem) -> str | None:
    where = f"{folder.url}{item.path}"
    if item.kind != _FOLDER:
        found = obs.find(folder, item.path)
        if found is None:
            return f"{where}: not found; upload the training data with all parts that the suite's README lists"
        if item.size is not None and found.size != item.size:
            return f"{where} has {found.size} bytes; expected {item.size}"
        return None
    names = [entry.key for entry in obs.objects(folder, f"{item.path.rstrip('/')}/") if not entry.key.endswith("/")]
    if not names:
        return f"{where}: no such folder; upload the training data with all parts that the suite's README lists"
    if item.files is not None and len(names) != item.files:
        return f"{where} has {len(names)} files; expected {item.files}"
    return None
