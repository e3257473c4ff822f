"""A vendor with a device other than CUDA: the training uses its modules and hooks."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import extern, perflog
from tests.driver.frameworks.ranks import HERE, run_ranks, wait
from tests.driver.frameworks.toy_data import case

pytestmark = pytest.mark.slow

# As existing plug-ins do, the vendor gives the device its name in torch; the CPU does the work.
DEVICE = """
import types, torch
from torch import distributed as dist
__version__ = "1.2"
torch.utils.rename_privateuse1_backend("acme")
module = types.ModuleType("torch.acme")
module.is_available = lambda: False
torch._register_device_module("acme", module)

def create(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)
dist.Backend.register_backend("accl", create, devices=["cpu"])
"""
HOOKS = """
import json, os, time
import torch

assert torch.device("acme", 0).type == "acme"


def _recorded(name, function):
    def hook(*values):
        with open(os.path.join(os.environ["FLAGPERF_LOG_DIR"], "calls" + os.environ["RANK"]), "a") as stream:
            stream.write(json.dumps([name, *map(str, values)]) + "\\n")
        return function(*values)
    return hook


class _Ticks:
    name = "ticks of Acme"
    def mark(self):
        return time.perf_counter()
    def seconds(self, marks):
        return [after - before for before, after in zip(marks, marks[1:])]


set_device = _recorded("set_device", lambda *_: torch.device("cpu"))
settings = _recorded("settings", lambda *_: None)
seed = _recorded("seed", lambda *_: None)
autocast = _recorded("autocast", lambda _, dtype: torch.autocast("cpu", dtype=dtype))
grad_scaler = _recorded("grad_scaler", lambda _: torch.amp.GradScaler("cpu", init_scale=8.0))
copy_stream = _recorded("copy_stream", lambda _: None)
synchronize = _recorded("synchronize", lambda _: None)
events = _recorded("events", lambda _: _Ticks())
memory = _recorded("memory", lambda _: 12345)
profiler = _recorded("profiler", lambda _: None)
"""


@dataclass(frozen=True)
class RankOutput:
    """The events and the hook calls that one rank wrote."""

    events: dict[str, Any]
    calls: list[list[str]]

    def of(self, hook: str) -> list[list[str]]:
        return [call[1:] for call in self.calls if call[0] == hook]


def output_of(folder: Path, rank: int) -> RankOutput:
    with (folder / f"rank{rank}.out.log").open("rb") as stream:
        events = {record.event: record.value for record in perflog.read_records(stream)}
    return RankOutput(events, [json.loads(line) for line in (folder / f"calls{rank}").read_text().splitlines()])


@pytest.fixture(scope="module")
def ranks(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> list[RankOutput]:
    """Run a training with two ranks on an invented device with its own collectives."""
    folder = tmp_path_factory.mktemp("acme")
    (folder / "acme_device.py").write_text(DEVICE)
    (folder / "device.py").write_text(HOOKS)
    acme = {"device": "acme", "backend": "accl", "modules": ["acme_device", "types"]}
    body = case("pytorch", precision="fp16", train_batch_size=16, max_steps=4, eval_steps=2)
    (folder / "case.json").write_text(json.dumps({**body, **acme, "device_module": str(folder / "device.py")}))
    where = {"FLAGPERF_CASE": str(folder / "case.json"), "FLAGPERF_LOG_DIR": str(folder)}
    started = run_ranks(
        [torch_python, str(HERE / "toy_pytorch.py")], repo, folder, 2, PYTHONPATH=f"{repo}:{folder}", **where
    )
    output = wait(started)
    logs = "".join((folder / f"rank{rank}.out.log").read_text() for rank in range(2))
    assert [rank.returncode for rank in started] == [0, 0], "\n".join([*output, logs])
    return [output_of(folder, rank) for rank in range(2)]


def test_a_training_on_a_vendors_device_finishes_and_logs_its_hooks(ranks: list[RankOutput]) -> None:
    for rank in ranks:
        assert rank.events["FINISHED"]["steps"] == 4
        assert rank.events["INIT_END"]["replaced_hooks"] == sorted(extern.HOOKS)
        assert rank.events["INIT_END"]["libraries"]["acme_device"] == "1.2"
        assert "types" not in rank.events["INIT_END"]["libraries"], "the module has no version"
        assert rank.events["INIT_END"]["world_size"] == 2
    assert ranks[0].events["FINISHED"]["final_metrics"] == ranks[1].events["FINISHED"]["final_metrics"]


def test_every_hook_is_called(ranks: list[RankOutput]) -> None:
    for number, rank in enumerate(ranks):
        assert rank.calls[0] == ["set_device", "acme", str(number), "2"]
        ((device, config),) = rank.of("settings")
        assert device == "cpu"
        assert "precision='fp16'" in config
        assert rank.of("profiler") == rank.of("grad_scaler") == rank.of("events") == rank.of("copy_stream") == [["cpu"]]
        assert set(map(tuple, rank.of("autocast"))) == {("cpu", "torch.float16")}
        counted = Counter(call[0] for call in rank.calls)
        # Begin and end of the training, of each of three evaluations, and of each check at a step drawn at random.
        assert counted["synchronize"] >= 8
        assert counted["memory"] == 2
        assert counted["autocast"] == 4, "once for all steps and once for each evaluation"
        assert rank.events["FINISHED"]["timing"] == "ticks of Acme"
        assert rank.events["FINISHED"]["peak_memory_bytes"] == 12345
    first, second = (rank.of("seed") for rank in ranks)
    assert first[0] == second[0], "the seed of the weights is the same"
    assert first[1] != second[1], "the later seed differs"
