"""The estimated memory of a rank: the program's figures, the table of --plan, and what goes wrong."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import options
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, CatalogError
from pytest_flagperf.plan import Plan, PlanRequest, describe, make_plan, one_card_plan, too_large
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.measured.measure import measure
from tests.helpers.results_help import edit_json, replay_dir
from tests.helpers.trees import SUITE_TOML, VENDOR_TOML, tree, write, write_config, write_suite, write_vendor

PROGRAM = Path(__file__).parents[2] / "suites/common/language/memory.py"
ONE_BILLION = {
    "vocab_size": 128256, "num_layers": 16, "hidden_size": 2048, "num_heads": 32, "num_kv_heads": 8, "head_size": 64,
    "intermediate_size": 8192, "tied_embeddings": True, "max_seq_length": 8192, "loss_chunk": 2048,
    "train_batch_size": 4, "gradient_accumulation_steps": 1, "precision": "bf16", "compile": True,
    "checkpoint_activations": False, "fused_optimizer": True,
}  # fmt: skip
EIGHT_BILLION = {
    **ONE_BILLION, "num_layers": 32, "hidden_size": 4096, "head_size": 128, "intermediate_size": 14336,
    "tied_embeddings": False,
}  # fmt: skip
MIXTURE = {
    **ONE_BILLION, "vocab_size": 201088, "num_layers": 24, "hidden_size": 2880, "num_heads": 64,
    "intermediate_size": 2880, "tied_embeddings": False, "num_experts": 32, "experts_per_token": 4,
}  # fmt: skip
GIB = 2**30


def estimated(config: dict[str, Any], program: Path = PROGRAM, **parallel: int) -> dict[str, float]:
    """Return the bytes of the parts by the program of a suite, that of the language suites by default."""
    request = {"config": config, "parallel": {"replicate": 1, "shard": 1, "expert": 1, "tensor": 1, **parallel}}
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(program)], input=json.dumps([request]), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    (reply,) = json.loads(done.stdout)
    return dict(reply["bytes"])


def test_the_weights_are_all_parameters() -> None:
    assert estimated(ONE_BILLION)["weights"] == 4 * 1_235_814_400
    assert estimated(MIXTURE, shard=2, expert=8)["weights"] == 4 * 20_914_757_184 / 16
    divided = estimated(EIGHT_BILLION, shard=4, tensor=2)
    assert divided["weights"] == divided["optimizer"] / 2 == 4 * 8_030_261_248 / 8


def test_an_estimate_is_within_a_tenth_of_the_peak_on_an_h100() -> None:
    """The peak is of llama32_1b:pytorch:H100:1:1:1 on synthetic data, compiled, in bf16, with torch 2.11."""
    config, peak = {**ONE_BILLION, "loss_chunk": 8192}, 64_928_632_320
    assert sum(estimated(config).values()) == pytest.approx(peak, rel=0.1)
    for other in ({"checkpoint_activations": "selective"}, {"train_batch_size": 8}, {"precision": "fp32"}):
        assert sum(estimated({**config, **other}).values()) != pytest.approx(peak, rel=0.1), other


def test_recomputation_shards_and_tensor_ranks_need_less() -> None:
    def total(parallel: dict[str, int], **more: Any) -> float:
        return sum(estimated({**EIGHT_BILLION, "train_batch_size": 1, **more}, PROGRAM, **parallel).values()) / GIB

    none, selective, full = (total({"shard": 8}, checkpoint_activations=mode) for mode in (False, "selective", True))
    assert none > selective > full
    assert total({"shard": 2}) > total({"shard": 4}) > none > total({"shard": 4, "tensor": 2})
    assert total({"replicate": 2}) > total({}), "the buckets of DDP stay"
    assert total({"shard": 8}, gradient_accumulation_steps=2) > none, "gradients of a micro-step stay until the update"
    assert total({"shard": 8}, checkpoint_activations=True, fused_optimizer=False) >= full


def test_flux1s_weights_are_all_parameters_and_an_evaluation_gathers_them() -> None:
    suite = PROGRAM.parents[2] / "flux1/pytorch"
    config = {**options.values("pytorch", suite / "config/_base.py"), "compile": True}
    divided = estimated(config, suite / "memory.py", shard=8)
    assert divided["weights"] == divided["optimizer"] / 2 == 4 * 11_891_178_560 / 8
    assert divided["gathered"] < 2 * 11_891_178_560 / 8
    recomputed = estimated(
        {**config, "checkpoint_activations": True, "train_batch_size": 1}, suite / "memory.py", shard=8
    )
    assert recomputed["gathered"] == 2 * 11_891_178_560, "the most is in an evaluation"


TOY = """
import json, sys
requests = json.load(sys.stdin)
sizes = {False: 8, "selective": 4, True: 2}
print(json.dumps([
    {"moment": "loss", "bytes": {"weights": 2**34 / one["parallel"]["shard"],
                                 "activations": sizes[one["config"]["checkpoint_activations"]] * 2**30}}
    for one in requests
]))
"""


def plan_of(root: Path, program: str = TOY, case: str = "toy:pytorch:X9:1:2:1", **more: Any) -> Plan:
    tree(root)
    for cards in (1, 2, 4):
        write_config(root, "", f"config_X9x1x{cards}.py")
    write_suite(root, toml='common = ["language"]\nmemory = "language"\n' + SUITE_TOML)
    write_vendor(root, toml=VENDOR_TOML.replace("[chips.X9]\n", "[chips.X9]\nmemory_gib = 19\n"))
    write(root, "suites/common/language/__init__.py", "")
    write(root, "suites/common/language/memory.py", program)
    request = PlanRequest(Case.parse(case), vendor="acme", synthetic=True, **more)
    return make_plan(Catalog.scan([root]), request)


def test_the_plan_lists_the_memory_of_each_shape(tmp_path: Path) -> None:
    text = describe(plan_of(tmp_path, settings=("parallel=fsdp",)))
    start = text.index("  memory ")
    assert [line.strip() for line in text[start : text.index("  hosts")].splitlines()] == [
        "memory    about 16.0 GiB of tensors on each rank, at the loss; fits into the 19 GiB of X9",
        "GiB of each rank by shape; the last columns: the total by checkpoint_activations (full: True)",
        "shape  weights  activations  total  fits    off  selective  full",
        "1x2      8.0          8.0   16.0   yes   16.0       12.0  10.0",
        "1x1     16.0          8.0   24.0    no  24.0*      20.0*  18.0",
        "1x4      4.0          8.0   12.0   yes   12.0        8.0   6.0",
        "1x8      2.0          8.0   10.0   yes   10.0        6.0   4.0",
        "2x8      1.0          8.0    9.0   yes    9.0        5.0   3.0",
        "fits: tight if less than a tenth of the X9's 19 GiB is left; * does not fit",
    ]
    assert max(map(len, text.splitlines())) <= 120


def test_a_case_that_may_fit_runs(tmp_path: Path) -> None:
    recomputed = plan_of(tmp_path, case="toy:pytorch:X9:1:1:1", settings=("checkpoint_activations=True",))
    assert too_large([recomputed]) == [], "18 of 19 GiB may fit"
    assert "18.0 GiB of tensors on each rank, at the loss; may not fit into" in describe(recomputed)


def test_a_shape_that_the_table_of_parallel_does_not_fit_says_why(tmp_path: Path) -> None:
    text = describe(plan_of(tmp_path, case="toy:pytorch:X9:1:4:1", settings=("parallel=shard=4",)))
    assert "1x2  shard 4 does not divide 2, the number of ranks" in text


def test_one_card_of_a_case_has_the_estimate_of_the_whole_model(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, settings=("parallel=fsdp",))
    assert plan.to_json()["memory"] == {"weights": 2**33, "activations": 8 * 2**30}
    assert one_card_plan(plan).memory["weights"] == 2**34
    assert too_large([plan]) == []
    (sentence,) = too_large([one_card_plan(plan)])
    assert "toy:pytorch:X9:1:1:1: about 24.0 GiB of tensors on each rank, at the loss; does not fit into" in sentence
    strong = plan_of(tmp_path, settings=("scaling=strong",))
    assert one_card_plan(strong).memory == {}, "the batch of both cards is not estimated"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit('num_heads is 3; expected a divisor of hidden_size')", "exit status 1: num_heads is 3;"),
        ("print('hello')", "expected JSON on stdout; got 'hello"),
        ("print('[]')", "expected 20 estimates; got 0"),
        ("print('[{}]')", "memory.py: 0.moment is missing"),
        (
            "print('[' + ', '.join(['{\"moment\": \"loss\", \"bytes\": {\"weights\": -1}}'] * 20) + ']')",
            "expected a number",
        ),
        ("import torch", "No module named 'torch'"),
    ],
    ids=["fails", "no JSON", "too few", "other keys", "negative", "needs a package"],
)
def test_a_broken_program_is_named(tmp_path: Path, program: str, message: str) -> None:
    with pytest.raises(Problems) as error:
        plan_of(tmp_path, program, settings=("parallel=fsdp",))
    assert message in str(error.value)
    assert "suites/common/language/memory.py: " in str(error.value)


def test_a_suite_may_have_the_program_in_its_own_folder(tmp_path: Path) -> None:
    shared = plan_of(tmp_path).memory
    own, toml = tmp_path / "suites/toy/pytorch/memory.py", tmp_path / "suites/toy/pytorch/suite.toml"
    (tmp_path / "suites/common/language/memory.py").rename(own)
    with pytest.raises(CatalogError, match=r"suite\.toml:2: memory is 'language'; allowed: \."):
        _ = Catalog.scan([tmp_path]).suite("toy", "pytorch").ranks
    toml.write_text(toml.read_text().replace('memory = "language"', 'memory = "."'))
    request = PlanRequest(Case.parse("toy:pytorch:X9:1:2:1"), vendor="acme", synthetic=True)
    assert make_plan(Catalog.scan([tmp_path]), request).memory == shared


def test_a_measured_peak_names_the_estimate(tmp_path: Path) -> None:
    round_dir = Path(shutil.copytree(replay_dir("converged_1x2"), tmp_path / "round1"))
    before = measure(round_dir).metric("peak_memory")
    assert before is not None
    assert "estimate" not in before.how
    edit_json(round_dir / "plan.json", memory={"weights": 2**28, "activations": 2**27})
    after = measure(round_dir).metric("peak_memory")
    assert after is not None
    assert after.how.endswith("; the estimate before the run: 384 MiB (weights 256 MiB, activations 128 MiB)")
