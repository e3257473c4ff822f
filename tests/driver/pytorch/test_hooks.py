"""A vendor whose device is no CUDA: its modules and hooks are used wherever the training touches the device."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import extern, perflog
from tests.driver.pytorch.conftest import HERE, run_ranks, wait
from tests.driver.pytorch.toy_case import case

pytestmark = pytest.mark.slow

# Torch knows the device by the name that the vendor gives it, as those that exist do; its work is done on the CPU.
DEVICE = """
import types, torch
__version__ = "1.2"
torch.utils.rename_privateuse1_backend("acme")
module = types.ModuleType("torch.acme")
module.is_available = lambda: False
torch._register_device_module("acme", module)
"""
COLLECTIVES = """
import acme_device
from torch import distributed as dist
def create(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)
dist.Backend.register_backend("accl", create, devices=["cpu"])
"""
HOOKS = """
import json, os, time
import torch

assert torch.device("acme", 0).type == "acme"


def _note(*what):
    with open(os.path.join(os.environ["FLAGPERF_LOG_DIR"], "calls" + os.environ["RANK"]), "a") as stream:
        stream.write(json.dumps([str(one) for one in what]) + "\\n")


class _Ticks:
    name = "ticks of Acme"
    def mark(self):
        return time.perf_counter()
    def seconds(self, marks):
        return [after - before for before, after in zip(marks, marks[1:])]


def set_device(name, local_rank, local_world_size):
    _note("set_device", name, local_rank, local_world_size)
    return torch.device("cpu")

def settings(device, config):
    _note("settings", device, config.precision, config.cudnn_benchmark)

def seed(device, value):
    _note("seed", device, value)

def autocast(device, dtype):
    _note("autocast", device, dtype)
    return torch.autocast("cpu", dtype=dtype)

def grad_scaler(device):
    _note("grad_scaler", device)
    return torch.amp.GradScaler("cpu", init_scale=8.0)

def copy_stream(device):
    _note("copy_stream", device)

def synchronize(device):
    _note("synchronize", device)

def events(device):
    _note("events", device)
    return _Ticks()

def memory(device):
    _note("memory", device)
    return 12345
"""
BAD = {
    "gives nothing": "import torch\ndef set_device(*_): return torch.device('cpu')\ndef events(device): pass\n",
    "misspelt": "def synchronise(device): pass\n",
    "no function": "memory = 3\n",
    "raises": "import torch\ndef set_device(*_): return torch.device('cpu')\n"
    "def memory(device): raise OSError('no such counter')\n",
    "no device": "def set_device(*_): return 'acme:0'\n",
    "does not run": "import acme_missing\ndef memory(device): pass\n",
}


@dataclass(frozen=True)
class Told:
    """What one rank wrote."""

    events: dict[str, Any]
    calls: list[list[str]]

    def of(self, hook: str) -> list[list[str]]:
        return [call[1:] for call in self.calls if call[0] == hook]


def told(folder: Path, rank: int = 0) -> Told:
    calls = folder / f"calls{rank}"
    with (folder / f"rank{rank}.out.log").open("rb") as stream:
        found = {record.event: record.value for record in perflog.read_records(stream)}
    return Told(found, [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else [])


def plugged(folder: Path, hooks: str | None, modules: list[str], **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    body = case(**settings)
    if hooks is not None:
        (folder / "device.py").write_text(hooks)
        body["device_module"] = str(folder / "device.py")
    (folder / "case.json").write_text(json.dumps({**body, "device": "acme", "backend": "accl", "modules": modules}))
    return folder


@pytest.fixture(scope="module")
def ranks(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """Two ranks of a training on the made-up device, with its own collectives."""
    folder = tmp_path_factory.mktemp("acme")
    (folder / "acme_device.py").write_text(DEVICE)
    (folder / "acme_collectives.py").write_text(COLLECTIVES)
    how: dict[str, Any] = {"precision": "fp16", "train_batch_size": 16, "max_steps": 4, "eval_steps": 2}
    plugged(folder, HOOKS, ["acme_device", "acme_collectives"], **how)
    where = {"FLAGPERF_CASE": str(folder / "case.json"), "FLAGPERF_LOG_DIR": str(folder)}
    started = run_ranks([torch_python, str(HERE / "toy.py")], repo, folder, 2, PYTHONPATH=f"{repo}:{folder}", **where)
    output = wait(started)
    logs = "".join((folder / f"rank{rank}.out.log").read_text() for rank in range(2))
    assert [rank.returncode for rank in started] == [0, 0], "\n".join([*output, logs])
    return [told(folder, rank) for rank in range(2)]


def test_a_training_on_a_device_of_its_own_ends_well_and_says_whose_it_was(ranks: list[Told]) -> None:
    for rank in ranks:
        assert rank.events["FINISHED"]["steps"] == 4
        assert rank.events["INIT_END"]["replaced_hooks"] == sorted(extern.HOOKS)
        assert rank.events["INIT_END"]["libraries"]["acme_device"] == "1.2"
        assert "acme_collectives" not in rank.events["INIT_END"]["libraries"], "it tells no version"
        assert rank.events["INIT_END"]["world_size"] == 2
    assert ranks[0].events["FINISHED"]["final_metrics"] == ranks[1].events["FINISHED"]["final_metrics"]


def test_every_hook_is_called_where_it_must_be(ranks: list[Told]) -> None:
    for number, rank in enumerate(ranks):
        assert rank.calls[0] == ["set_device", "acme", str(number), "2"]
        assert rank.calls[1] == ["settings", "cpu", "fp16", "True"]
        assert rank.of("grad_scaler") == rank.of("events") == rank.of("copy_stream") == [["cpu"]]
        assert set(map(tuple, rank.of("autocast"))) == {("cpu", "torch.float16")}
        counted = Counter(call[0] for call in rank.calls)
        # Begin and end of the training, and each of three evaluations.
        assert counted["synchronize"] == 5
        assert counted["memory"] == 2
        assert counted["autocast"] == 4, "of all steps, and of each evaluation"
        assert rank.events["FINISHED"]["timing"] == "ticks of Acme"
        assert rank.events["FINISHED"]["peak_memory_bytes"] == 12345
    one, other = (rank.of("seed") for rank in ranks)
    assert one[0] == other[0], "the weights are the same"
    assert one[1] != other[1], "what is drawn later is not"


@pytest.fixture(scope="module")
def refused(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each training that cannot be said at its end, by what is wrong with it."""
    root = tmp_path_factory.mktemp("bad")
    folders = {name: plugged(root / name, hooks, ["json"]) for name, hooks in BAD.items()}
    folders["no module"] = plugged(root / "no module", None, ["json", "acme_device"])
    argv = [torch_python, str(HERE / "controls.py"), *map(str, folders.values())]
    wait(run_ranks(argv, repo, root, 1))
    return {name: told(folder).events for name, folder in folders.items()}


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("misspelt", "ExternError", ["device.py:1: 'synchronise' is not a hook", "did you mean 'synchronize'?"]),
        (
            "no function",
            "ExternError",
            ["device.py: 'memory' replaces a device hook, so it must be a function; got int"],
        ),
        ("gives nothing", "DeviceError", ["device.py: events gives None; docs/vendors.md says what it must return"]),
        ("raises", "DeviceError", ["device.py: memory raised OSError: no such counter"]),
        ("no device", "DeviceError", ["device.py: set_device gives 'acme:0', wanted is a torch.device"]),
        ("does not run", "DeviceError", ["device.py cannot be imported: ModuleNotFoundError: No module named 'acme_m"]),
        ("no module", "DeviceError", ["device 'acme' needs the module 'acme_device' (modules in vendor.toml)"]),
    ],
)
def test_what_is_wrong_is_the_ranks_last_word(
    refused: dict[str, dict[str, Any]], name: str, kind: str, words: list[str]
) -> None:
    last = refused[name]["FAILED"]
    assert last["type"] == kind
    assert [word for word in words if word not in last["error"]] == []
    assert "INIT_END" not in refused[name]
