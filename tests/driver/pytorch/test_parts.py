"""What only PyTorch has: FSDP, compiling, device events, streams, and the parts of its trainer."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.driver.frameworks.ranks import RankResults, distance

pytestmark = pytest.mark.slow
SCENARIOS = "only_pytorch"


def test_two_ranks_train_like_one_sharded_or_not(pair: list[RankResults]) -> None:
    for rank in pair:
        plain = rank["ddp"]
        for scenario in ("fsdp", "fsdp_accumulated"):
            assert distance(plain.weights, rank[scenario].weights) < 1e-5
        # One rank has all evaluation batches, the other has no batch, and no rank waits in a forward pass.
        assert rank["fsdp"].finished["final_metrics"] == plain.finished["final_metrics"]
        assert distance(rank["ddp_lamb"].weights, rank["fsdp_lamb"].weights) < 1e-5
        assert distance(plain.weights, rank["ddp_lamb"].weights) > 1e-2, "the control"
        # Bit for bit, as docs/days.md says; no other test continues shards on as many ranks.
        whole, second = (rank.within("fsdp_resumed", name) for name in ("whole", "second"))
        assert second.losses == {step: loss for step, loss in whole.losses.items() if step > 5}
        assert second.weights == whole.weights
    assert pair[0].value("no_syncs") == 6, "of eight micro-steps; the last one of a step synchronizes"


def test_a_flipped_bit_of_the_weights_is_found_and_named(pair: list[RankResults]) -> None:
    for rank in pair:
        shard, undamaged, copy = (rank.value("flipped", how) for how in ("fsdp 1", "fsdp None", "ddp 1"))
        assert shard.startswith("ReplicaError: first.bias changed on rank 1 between the updates of steps 5 and 6")
        assert undamaged is None, "the control"
        assert "the weights differ between ranks 0, 1" in copy


def test_samples_that_two_ranks_share_count_once(pair: list[RankResults]) -> None:
    for rank in pair:
        shared, plain = rank["tensor"], rank["ddp"]
        assert distance(shared.weights, plain.weights) < 1e-5, "ranks read the same samples as both ranks together"
        for name in ("samples", "measured_samples", "final_metrics", "epochs"):
            assert shared.finished[name] == pytest.approx(plain.finished[name]), name
        assert shared.of("INIT_END")[0]["parallel"] == "tensor=2"
        assert "expected a model_to_ddp step of the suite for tensor" in (rank["no_tensor"].error or "")


def test_sharded_ranks_exchange_parameters_in_the_precision_of_the_steps(pair: list[RankResults]) -> None:
    gathered, scattered = (
        {name: pair[0].value("exchanged", name, "bytes")[place] for name in ("fp32", "bf16", "fp32_norm", "bf16_norm")}
        for place in (0, 1)
    )
    assert gathered["bf16"] == gathered["fp32"] / 2 > 0
    assert gathered["bf16_norm"] == gathered["fp32_norm"] > gathered["fp32"], "a batch norm keeps fp32"
    assert scattered["bf16"] == scattered["fp32"], "gradients are summed in fp32"
    ddp, fsdp, exact = (
        pair[0].within(*names).weights
        for names in (["ddp_bf16"], ["exchanged", "bf16", "trained"], ["exchanged", "fp32", "trained"])
    )
    assert distance(ddp, fsdp) < 2 * distance(ddp, exact), "as far from DDP in bf16 as fp32 is"


def test_compiled_models_have_larger_buckets(pair: list[RankResults]) -> None:
    """Each bucket is a graph of its own."""
    assert pair[0].value("bucket_mib") == [25, 128]


def test_parts_of_a_step_do_what_the_config_says(alone: RankResults) -> None:
    assert alone.value("units", "lamb_from_zero") == pytest.approx(0.1, rel=1e-3)
    assert alone.value("units", "linear") == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert alone.value("units", "compile_mode") == [["default"], ["max-autotune"]]
    assert alone.value("units", "copied_aside") == ["copy stream", "default stream", "wait", 1.0]
    kernels = [["nvjet_tst_128x256", 20, 120, 100, 0], ["Memcpy HtoD (Pinned -> Device)", 140, 150, 10, 4096]]
    # The last wait comes after the last launch: the end of the recording.
    assert alone.value("units", "recorded_kernels") == [[kernels, 2, [95]]] * 2
    assert alone.value("units", "placed") == [[1.0] * 4, [0.0, 1.0, 2.0, 3.0]], "a buffer keeps its values"
    assert alone.value("units", "moved_model") == "meta"
    assert alone.value("units", "moved") == ["meta", "meta", "meta", ["text", 3]]
    assert alone.value("units", "switches") == {"bf16": [True] * 5, "fp32": [False] * 5}
    assert alone["compiled"].finished["padding_share"] is None
    assert alone["compiled"].finished["compile_time"] > 0
    assert alone["compiled"].of("INIT_END")[0]["compile"] is True
    assert alone["compiled"].finished["final_loss"] < alone["compiled"].losses[1]
    assert alone["compiled"].finished["profile"]["graph_breaks"] == 0


def test_throughput_only_profiles_operators_on_the_first_rank(alone: RankResults, pair: list[RankResults]) -> None:
    profile = alone["compiled"].finished["profile"]
    assert profile["steps"] == 5
    assert profile["kinds"]["matrix product"] > 0
    # Operators lie within one another: the times of all are those without the inner ones.
    assert sum(profile["kinds"].values()) == pytest.approx(profile["busy_time"], rel=0.01)
    linear = {kernel["name"]: kernel["calls"] for kernel in profile["kernels"]}
    assert linear["aten::addmm"] == 2, "two layers, five steps"
    assert profile["host_time"] > 0
    assert (alone["compiled"].finished["steps"], alone["compiled"].finished["measured_steps"]) == (5, 4)
    assert pair[0]["profiled"].finished["profile"]["kinds"]["collective"] > 0
    assert pair[0]["profiled"].finished["profile"]["graph_breaks"] is None, "nothing is compiled"
    assert pair[1]["profiled"].finished["profile"] is None
    for name in ("profiled", "profiled_fsdp"):
        moved = pair[0][name].finished["profile"]["bytes"]
        assert moved["gradients"] == 4 * pair[0][name].of("INIT_END")[0]["parameters"], "also of a model in shards"
        assert moved["operations"] > moved["least"] > moved["gradients"]
    assert alone["compiled"].finished["profile"]["bytes"]["operations"] is None, "compiled kernels are not operations"


def test_the_bytes_of_a_step_are_those_by_hand(alone: RankResults) -> None:
    weights = 4 * (16 * 64 + 64 + 64 * 10 + 10)
    # The input, the last layer's weight (only read), GELU's and the softmax's output, the labels and their sum.
    kept = 2 * 4 * 32 * 16 + 4 * 64 * 10 + 2 * 4 * 32 * 64 + 2 * 4 * 32 * 10 + 2 * 8 * 32 + 2 * 4
    gelus_input = 2 * 4 * 32 * 64
    states = 2 * weights + 4 * 4
    step_bytes = alone.value("units", "step_bytes")
    whole = weights + kept + gelus_input + 4 * weights + 2 * states
    assert step_bytes["least"] == [whole, whole - gelus_input], "what is computed again is not kept"
    assert step_bytes["gradients"] == weights
    # Tensors of 400 bytes; a view; 4 bytes of an expanded tensor; rows of 32 bytes, by indices of 8; two tensors.
    assert step_bytes["operations"] == [1200, 1200, 800, 1200, 0, 404, 6 * (32 + 32 + 8), 1600]


def test_compiled_code_is_kept_in_our_folder_or_the_users(torch_python: str, repo: Path, tmp_path: Path) -> None:
    program = "import flagperf_driver.pytorch, torch._dynamo, os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    own = {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "compiled")}
    for given, kept in (({}, "compiled/torchinductor"), ({"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "own")}, "own")):
        env = {**os.environ, "PYTHONPATH": str(repo), **own, **given}
        done = subprocess.run([torch_python, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(tmp_path / kept)
        assert not list(tmp_path.glob("torchinductor_*"))


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("failing_device", ["DeviceError", "not found by torch", ": error 304; check the driver"]),
        ("no_device", ["DeviceError", "'acme'", "has no torch.acme", "modules of [framework.pytorch] in vendor.toml"]),
        ("no_module", ["DeviceError", "module 'torch_acme'", "cannot be imported", "torch 2", "install it beside"]),
        (
            "no_backend",
            ["DeviceError", "backend 'accl' not found", "modules of [framework.pytorch] in", "choose from ", "gloo"],
        ),
        ("no_events", ["DeviceError", "torch.meta has no Event; define 'events' in the vendor's device.py"]),
        ("hook_no_device", ["DeviceError", "device.py: set_device() returned 'acme:0'; expected a torch.device"]),
        ("hook_none", ["DeviceError", "device.py: events() returned None; docs/vendors.md describes its return"]),
        ("hook_raises", ["DeviceError", "device.py: memory raised OSError: no such counter"]),
        ("hook_not_imported", ["DeviceError", "device.py cannot be imported: ModuleNotFoundError: No module named"]),
        ("no_buffer", ["TypeError", "buffer angles is on the meta device", "create it on the CPU"]),
        ("no_scaler", ["DeviceError", "precision='fp16'", "has no loss scaler for 'cuda'", "bf16 or fp32"]),
        ("no_lower", ["DeviceError", "precision='fp16'", "torch.float16 on 'cuda'", "define 'autocast' in the"]),
    ],
)
def test_an_error_says_what_is_possible(alone: RankResults, scenario: str, words: list[str]) -> None:
    message = alone.value("units", scenario)
    assert [word for word in words if word not in message] == []
