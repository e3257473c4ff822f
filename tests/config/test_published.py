"""FlagPerf's published config files, read as they are."""

from pathlib import Path

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, CatalogError
from pytest_flagperf.config import ConfigError, Resolved, resolve
from pytest_flagperf.config.translation import translation_table
from pytest_flagperf.plan import Plan, PlanRequest, describe, make_plan
from tests.helpers import published
from tests.helpers.published import case
from tests.helpers.trees import tree, write


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return published.catalog(tmp_path_factory.mktemp("published"))


def planned(catalog: Catalog, vendor: str, one: Case) -> Plan:
    return make_plan(catalog, PlanRequest(one, vendor=vendor, scale="reference", check_data=False))


def config_of(catalog: Catalog, vendor: str, one: Case) -> Resolved:
    suite = catalog.suite(one.model, one.framework)
    return resolve(suite, catalog.vendor(vendor), one, "reference", {}, catalog=catalog, check_data=False)


@pytest.mark.integration
def test_every_key_of_every_file_is_accounted_for(catalog: Catalog) -> None:
    """In the plan of each file each name is once, with one of three outcomes and a reason, and --plan shows it."""
    found, cases = set(), published.cases(catalog)
    assert len(cases) == 40
    for vendor, one in cases:
        plan = planned(catalog, vendor, one)
        listed = {each.key: each for each in plan.translated}
        assert listed.keys() == assigned(vendor, one), str(one)
        assert len(listed) == len(plan.translated)
        text = " ".join(describe(plan).split())
        for each in plan.translated:
            assert each.effect, each
            assert f"{each.key} = {each.value}, {each.where}: {' '.join(each.effect.split())}" in text
            found.add(each.outcome)
    assert found == {"applied", "same as ours", "without effect"}


def assigned(vendor: str, one: Case) -> set[str]:
    """The names that a published file and its neighbours assign, by a look at the text."""
    folder = f"training/{vendor}/{one.model}-pytorch/config"
    names: set[str] = set()
    left = [f"config_{one.hardware}x{one.shape}"]
    while left:
        for line in published.files()[f"{folder}/{left.pop()}.py"].splitlines():
            if line.startswith("from config_"):
                left.append(line.split()[1])
            elif "=" in line and line[0].isalpha():
                names.add(line.partition("=")[0].partition(":")[0].strip())
    return names


def test_every_name_of_the_tables_is_a_key_of_its_suite() -> None:
    ours = Catalog.scan([published.REPO])
    for suite in ours.trainings.values():
        one, cpu = case(suite.model, "CPU", "1x1"), ours.vendor("cpu")
        keys = resolve(suite, cpu, one, "small", {}, catalog=ours, check_data=False).values.keys() | {"target"}
        table = translation_table(suite.path / "config")
        assert {rule.ours for rule in table.applied} <= keys, suite.name
        assert table.base.keys() <= {rule.theirs for rule in table.applied}, suite.name


def test_a_suites_own_key_is_no_name_of_the_original(tmp_path: Path) -> None:
    """The shared table says that loss_scale has no effect and lr is the learning rate; a suite may have its own."""
    catalog = tree(tmp_path, "loss_scale = 8.0\nlr = 3.0\nfp16 = True\n")
    base = tmp_path / "suites/toy/pytorch/config/_base.py"
    base.write_text(f"{base.read_text()}loss_scale = 1.0\nlr = 1.0\n")
    mutable = base.with_name("mutable_params.py")
    mutable.write_text('mutable_params = ["loss_scale", "lr"]\n')
    found = config_of(catalog, "acme", case("toy", "X9", "1x8"))
    assert [found.config[key] for key in ("loss_scale", "lr", "precision")] == [8.0, 3.0, "fp16"]
    assert found.config["learning_rate"] == 1e-3


def test_a_negative_count_and_a_mistake_in_a_table_are_errors(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "max_samples_termination = -1\n")
    assert problem == "config_A100x1x8.py:1: max_samples_termination = -1: expected 0 or more"
    file = write(tmp_path, "original.toml", '[[applied]]\ntheirs = "lr"\nours = "learning_rate"\ncounts = "epochs"\n')
    with pytest.raises(CatalogError, match=f"{file}:4: counts is 'epochs'; expected samples or micro-steps"):
        translation_table(tmp_path)


# Of each file by hand, from the original: batch of a card, learning rate, warm-up, steps, precision, and what else
# decides how long it trains. FlagPerf's fp32 on its NVIDIA chips was TF32, which no key of a file says.
BY_HAND = [
    # max_steps 30,000 micro-steps / 4; the rate falls over 30,000; at most 4,500,000 sequences.
    ("nvidia", "bert:A100:1x8", (24, 3.5e-4, 0, 7500, "fp16"), {"lr_decay": 30000, "max_samples": 4500000}),
    # 240,000 micro-steps / 56 = 4285.7; evaluated every 2,000 micro-steps: 35.7 steps.
    ("kunlunxin", "bert:R300:1x1", (8, 3.5e-4, 0, 4285, "fp32"), {"eval_steps": 35, "max_samples": 45000000}),
    # 20,000 micro-steps / 4.
    ("iluvatar", "bert:BI-V100:2x8", (20, 3.5e-4, 0, 5000, "fp16"), {"lr_decay": 20000, "max_samples": 4500000}),
    # 5,553,080 examples / (8 * 8) = 86,766.9; a tenth of 4,338 steps of decay; evaluated every 19,200 examples.
    ("nvidia", "glm:A100:1x8", (8, 1e-5, 434, 86766, "fp16"), {"eval_steps": 300, "lr_decay": 4338}),
    # 24,135 examples / 16 = 1508.4.
    ("nvidia", "glm:A100:1x1", (16, 1e-5, 434, 1508, "fp16"), {"eval_steps": 1200}),
    # No max_samples_termination: that of FlagPerf's _base.py, 5,553,080 / (8 * 4) = 173,533.8.
    ("nvidia", "glm:A100:1x4", (8, 1e-5, 434, 173533, "fp16"), {"eval_steps": 600}),
    # 1,388,270 * 4 / (16 * 16) = 21,691.7; its rate is twice the others'.
    ("metax", "glm:C500:2x8", (16, 2e-5, 434, 21691, "fp16"), {"eval_steps": 75}),
    # fp16 = False; 5,553,080 / (5 * 8) = 138,827.
    ("kunlunxin", "glm:R300:1x8", (5, 1e-5, 434, 138827, "fp32"), {"eval_steps": 480, "seed": 4096}),
    # max_epoch = 6 instead of 100; no limit in steps; no warm-up.
    ("metax", "resnet50:C500:1x1", (256, 0.8, 0, None, "fp32"), {"max_epochs": 6}),
    # amp = False and fp16 = False.
    ("mthreads", "resnet50:S4000:1x8", (256, 0.8, 0, None, "fp32"), {"max_epochs": 100, "max_samples": None}),
]


@pytest.mark.parametrize(("vendor", "short", "numbers", "more"), BY_HAND, ids=[row[1] for row in BY_HAND])
def test_ten_files_resolve_to_what_was_worked_out_by_hand(
    catalog: Catalog, vendor: str, short: str, numbers: tuple[object, ...], more: dict[str, object]
) -> None:
    config = config_of(catalog, vendor, case(*short.split(":"))).config
    keys = ("train_batch_size", "learning_rate", "lr_warmup", "max_steps", "precision")
    assert tuple(config[key] for key in keys) == numbers
    assert {key: config[key] for key in more} == more


def own(root: Path, text: str, one: str = "glm:A100:1x8", vendor: str = "nvidia") -> Resolved:
    """The config of a file of one's own, beside the suites of this repository."""
    model, hardware, shape = one.split(":")
    write(root, f"vendors/{vendor}/{model}-pytorch/config/config_{hardware}x{shape}.py", text)
    write(root, f"vendors/{vendor}/vendor.toml", (published.REPO / f"vendors/{vendor}/vendor.toml").read_text())
    if not (root / "suites").exists():
        (root / "suites").symlink_to(published.REPO / "suites")
    return config_of(Catalog.scan([root]), vendor, case(model, hardware, shape))


def outcomes(found: Resolved) -> dict[str, tuple[str, str]]:
    return {one.key: (one.outcome, one.effect) for one in found.translated}


def problems(root: Path, text: str, one: str = "glm:A100:1x8") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        own(root, text, one)
    folder = f"vendors/nvidia/{one.partition(':')[0]}-pytorch/config/"
    return [problem.replace(folder, "") for problem in caught.value.problems]


def test_our_names_may_stand_alone_or_beside_the_originals_if_they_agree(tmp_path: Path) -> None:
    """The control: max_steps means optimizer steps there, whatever is accumulated."""
    ours = "gradient_accumulation_steps = 4\nmax_steps = 1000\n"
    found = own(tmp_path / "ours", ours, "bert:A100:1x8")
    assert (found.config["max_steps"], found.translated) == (1000, ())
    theirs = own(tmp_path / "theirs", f"{ours}fp16 = True\n", "bert:A100:1x8")
    assert (theirs.config["max_steps"], theirs.config["lr_decay"]) == (250, 1000)
    found = own(tmp_path, "lr = 1e-4\ncompile = True\nmax_steps = 5000\n")
    assert [found.config[key] for key in ("learning_rate", "compile", "max_steps")] == [1e-4, True, 5000]
    assert own(tmp_path, "lr = 1e-4\nlearning_rate = 1e-4\n").config["learning_rate"] == 1e-4
    (problem,) = problems(tmp_path, "lr = 1e-4\nlearning_rate = 2e-4\n")
    also = "lr also sets this key, to 0.0001 (config_A100x1x8.py:1); keep one of the two"
    assert problem == f"config_A100x1x8.py:2: learning_rate = 0.0002: {also}"


def test_of_two_names_the_one_that_decides_there_decides_and_a_target_is_only_repeated(tmp_path: Path) -> None:
    """FlagPerf's BERT reads warmup_steps where warmup_proportion is 0 alone, and its base has 0.01."""
    both = own(tmp_path, "max_steps = 3000\nwarmup_proportion = 0\nwarmup_steps = 100\nfp16 = True\n", "bert:A100:1x8")
    assert both.config["lr_warmup"] == 100
    base = own(tmp_path, "max_steps = 3000\nwarmup_steps = 100\nfp16 = True\n", "bert:A100:1x8")
    assert base.config["lr_warmup"] == 30
    assert outcomes(base)["warmup_steps"][1].startswith("warmup_proportion = 0.01 decides (suites/bert/")
    found = own(tmp_path, "lr = 0.1\ntarget_acc1 = 75.5\n", "resnet50:A100:1x8")
    assert outcomes(found)["target_acc1"] == ("same as ours", "target = 0.755")
    (problem,) = problems(tmp_path, "lr = 0.1\ntarget_acc1 = 70\n", "resnet50:A100:1x8")
    assert "config_A100x1x8.py:2: target_acc1 = " in problem
    assert "expected the suite's target" in problem


def test_precision_follows_what_the_original_makes_of_its_flags(tmp_path: Path) -> None:
    def precision(text: str) -> object:
        return own(tmp_path, f"lr = 0.1\n{text}", "resnet50:A100:1x8").config["precision"]

    assert [precision(text) for text in ("", "amp = True\n", "fp16 = True\n", "amp = False\nfp16 = False\n")] == [
        "fp32",
        "fp16",
        "bf16",
        "fp32",
    ]


def test_a_list_of_one_rate_and_a_batch_in_tokens_are_read(tmp_path: Path) -> None:
    """FlagPerf's Transformer has a learning rate for each epoch, and its batch is a number of tokens."""
    found = own(tmp_path, "lr = [0.0005]\nmax_tokens = 8192\n", "transformer:A100:1x8")
    assert [found.config[key] for key in ("learning_rate", "train_batch_size")] == [0.0005, 32]
    assert type(found.config["train_batch_size"]) is int
    wrong = sorted(problems(tmp_path, "lr = [0.0005, 0.0001]\nmax_tokens = 8000\n", "transformer:A100:1x8"))
    assert [one.split(" = ")[0] for one in wrong] == ["config_A100x1x8.py:1: lr", "config_A100x1x8.py:2: max_tokens"]
    assert "here train_batch_size = 31.25: is 31.25; expected a whole number" in wrong[1]


def test_everything_that_cannot_be_translated_is_listed_at_once(tmp_path: Path) -> None:
    text = """\
import torch
from torch.cuda.amp import GradScaler
lr = "fast"
warmup = True
fp16 = 1
train_batch_size = torch.cuda.device_count()
clip_grad = 2.0
my_own_key = 3
my_secret = "abc"
eval_iterval_samples = 5
do_train = False
grad_scaler = GradScaler()
if torch.cuda.is_available():
    seed = 3
"""
    found = problems(tmp_path, text)
    assert sorted(int(problem.split(":")[1]) for problem in found) == [3, 4, 5, 6, 7, 8, 9, 10, 11, 13]
    by_line = {int(problem.split(":")[1]): problem.partition(": ")[2] for problem in found}
    assert by_line[3].startswith("lr = 'fast', here learning_rate = 'fast': is 'fast'")
    assert by_line[4] == "warmup = True: expected a number, got true or false"
    assert by_line[5] == "fp16 = 1: expected True or False"
    assert by_line[6].startswith(
        "train_batch_size: 'torch.cuda.device_count()' is not evaluated: config files are read"
    )
    assert by_line[7].startswith("clip_grad = 2.0, here max_grad_norm = 2.0: cannot be set here")
    assert by_line[8].startswith("my_own_key = 3: glm:pytorch has no such key")
    assert "abc" not in by_line[9]
    assert "did you mean eval_interval_samples" in by_line[10]
    assert by_line[11] == "do_train = False: expected True: a round always trains"
    assert by_line[13].startswith("if torch.cuda.is_available(): config files are read, not run; expected assignments")
