"""The selection of cases: keywords, markers, similar names, counts, and convergence."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.trees import PLAIN_SUITE_TOML, write_suite

from .conftest import TEST, Toy

pytestmark = pytest.mark.slow


def test_a_case_is_selected_by_its_parts_and_a_test_by_its_marker(toy: Toy) -> None:
    found = toy.collected("suites", "-m", "not speedup", "-k", "alpha", "--strict-markers")
    assert [name.partition("[")[0] for name in found] == ["test_converges", "test_throughput"] * 2
    assert len(toy.collected("suites", "-m", "speedup")) == 2
    toy.run("--markers").stdout.fnmatch_lines(["@pytest.mark.converges: *", "@pytest.mark.speedup: *"])
    alpha = [
        "test_converges[alpha:plain:CPU:1:2:1-round1]",
        "test_throughput[alpha:plain:CPU:1:2:1]",
        "test_speedup[alpha:plain:CPU:1:2:1]",
    ]
    assert toy.collected("suites", "-k", "alpha and 1x2") == alpha
    assert toy.collected("suites", "-k", "alpha and not 1x1 and small and plain and cpu") == alpha
    assert toy.collected("suites", "-k", "acme or 1x4 or reference") == []


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["alpah", "-n2"], "flagperf: -k: no test matches 'alpah'; did you mean alpha?"),
        (["alpha and beta"], "*'alpha and beta'; available keywords: 1x1, 1x2, CPU, alpha, beta, cpu, plain, small, *"),
    ],
)
def test_a_k_that_selects_nothing_has_a_suggestion(toy: Toy, words: list[str], shown: str) -> None:
    result = toy.run("suites", "-k", *words)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines([shown])


def test_a_price_of_an_unknown_chip_is_refused(toy: Toy) -> None:
    (toy.root / "flagperf.toml").write_text('[price]\nper_hour = { CPUU = 1 }\ncurrency = "EUR"\n')
    result = toy.run("suites", "--plan")
    result.stderr.fnmatch_lines(["*flagperf.toml: price.per_hour.CPUU: no vendor has this chip; did you mean CPU?"])


def test_selected_cases_are_counted_once_also_with_workers_and_without_the_ones_that_need_more_hosts(toy: Toy) -> None:
    for workers in ([], ["-n2"]):
        result = toy.run("suites", "-k", "alpha and throughput", "--throughput-only", *workers)
        assert result.ret == 0
        assert result.stdout.str().count("flagperf: 2 cases selected: cpu CPU at small scale; reports: ") == 1
    result = toy.run("suites", "--nodes=1x1,2x1", "--plan")
    result.stdout.fnmatch_lines(
        [
            "flagperf: 4 cases selected, 2 can run: cpu CPU at small scale; *",
            "  cannot run here: alpha:plain:CPU:2:1:1, beta:plain:CPU:2:1:1: needs 2 hosts, 1 available",
        ]
    )
    # A run of other tests shows no cases and no suggestion.
    toy.pytester.mkpydir("elsewhere").joinpath("test_it.py").write_text("def test_it(): pass\n")
    text = toy.run("elsewhere", "-k", "nothing").stdout.str()
    assert "flagperf: " not in text
    assert "selected:" not in text


def test_the_header_names_the_cases_that_need_not_converge(toy: Toy) -> None:
    for shape in ("1x1", "1x2"):
        toy.config("alpha", shape, "train_batch_size = 8\n")
    shown = toy.run("suites/alpha", "--vendor=acme", "--data-dir=.", "--collect-only").stdout
    shown.fnmatch_lines(["  throughput only: alpha:plain:X1:1:1:1 (*"])


def test_the_plan_shows_if_a_case_has_converged_before_and_which_folder_of_the_vendor_is_not_used(toy: Toy) -> None:
    asked, note = ("suites/alpha", "--nodes=1x1"), "vendors/cpu/alpha-plane is not used: *; did you mean alpha-plain?"
    (toy.root / "vendors" / "cpu" / "alpha-plane" / "extern").mkdir(parents=True)
    toy.run(*asked, "--plan", "-q").stdout.fnmatch_lines([f"note: {note}"])
    toy.run(*asked, "--plan", "-v").stdout.fnmatch_lines(["  converges not verified: no stored or published run of *"])
    shown = toy.run(*asked, "--repeat=2").stdout
    shown.fnmatch_lines([f"  note: {note}", note, "flagperf: 1 of 1 case passed; *"])
    assert shown.str().count("suites/alpha/test_alpha.py") == 1, "once, and not for each round"
    found = ["  converges verified in a stored run", "  duration  about * per round (median of 2 stored rounds)"]
    toy.run(*asked, "--plan", "-v").stdout.fnmatch_lines(found)


def test_a_class_in_an_unknown_suite_has_no_cases_of_other_suites(toy: Toy) -> None:
    (toy.root / "pytest.ini").write_text("[pytest]\n")
    folder = write_suite(toy.root / "proj", "mlp", "plain", PLAIN_SUITE_TOML).parent
    (folder / "test_mlp.py").write_text(TEST.format(name="Mlp", kind="Training"))
    result = toy.run(str(folder), "--vendor=cpu")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [f"class TestMlp in {folder}/test_mlp.py: no suite contains this class; *; add --roots={toy.root}/proj"]
    )
    assert "alpha" not in result.stdout.str()
    found = toy.collected(str(folder), f"--roots={toy.root}/proj")
    assert found
    assert all("[mlp:plain:CPU:" in name for name in found)


def test_a_class_outside_suites_is_an_error_but_a_function_is_not(toy: Toy) -> None:
    place = toy.pytester.mkpydir("elsewhere")
    (place / "test_it.py").write_text("def test_it(case): pass\n")
    assert len(toy.collected("elsewhere")) == 4
    (place / "test_it.py").write_text(TEST.format(name="Mlp", kind="Training"))
    result = toy.run("elsewhere")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*no suite contains this class;*move it to suites/<model>/*"])


def test_the_first_run_ends_with_next_steps(toy: Toy) -> None:
    result = toy.run("suites", "-k", "alpha and 1x1")
    lines = result.outlines
    start = lines.index("next:")
    page, model, vendor = (line.strip() for line in lines[start + 1 : start + 4])
    assert (toy.root / page.removeprefix("open ").removesuffix(" in a browser")).is_file()
    assert lines[start + 4].startswith("flagperf: 1 of 1 case passed")
    for text, more in ((model, "--plan"), (vendor.replace("NAME", "made").replace("CHIP", "M1"), "")):
        command = shlex.split(text.partition("#")[0])
        done = subprocess.run([*command, *more.split()], cwd=toy.root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (toy.root / "vendors" / "made" / "vendor.toml").is_file()
    assert Path(shlex.split(model)[0]).parent in (Path(sys.executable).parent, Path())
    # The control: no next steps if an option is passed.
    assert "next:" not in toy.run("suites", "-k", "alpha", "--nodes=1x1").outlines
