"""Vendor folders that attack a figure; each must end red or visibly marked, and its honest twin must stay green."""

from pathlib import Path
from typing import Any

from tests.helpers.trees import write
from tests.test_trainings import Finished, run

VENDOR = """
name = "Sly"
runtime = "venv"
scale = "small"
shapes = ["1x1", "1x2"]
[framework.pytorch]
device = "cpu"
backend = "gloo"
[uv]
UV_TORCH_BACKEND = "cpu"
[chips.S1]
devices_per_host = 2
"""
HONEST = """
def backward(ctx, loss, scaler):
    loss.backward()
"""


def trained(repo: Path, root: Path, adapter: str, device: str | None = None) -> Finished:
    folder = root / "vendors" / "sly"
    write(folder, "vendor.toml", VENDOR)
    write(folder, "resnet50-pytorch/extern/trainer_adapter.py", adapter)
    if device is not None:
        (folder / "device.py").write_text(device)
    arguments = ["-k", "resnet50 and not speedup", f"--roots={root}", "--vendor=sly", "--nodes=1x1"]
    return run(repo, root / "reports", *arguments)


def failed(finished: Finished) -> set[tuple[str, str]]:
    (case,) = finished.results["cases"]
    verdicts: list[dict[str, Any]] = [verdict for of_test in case["verdicts"].values() for verdict in of_test]
    return {(verdict["name"], verdict["sentence"]) for verdict in verdicts if not verdict["ok"]}
