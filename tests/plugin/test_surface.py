"""Before a run: collection, checks of the input, and the plan; and the log of what the harness does."""

import re

import pytest

from pytest_flagperf.settings import GROUPS, OPTIONS, SITE

from .conftest import Toy

pytestmark = pytest.mark.integration


def test_a_case_becomes_its_tests_one_card_first(toy: Toy) -> None:
    assert toy.collected("suites/alpha", "--repeat=2") == [
        "test_converges[alpha:plain:CPU:1:1:2-round1]",
        "test_converges[alpha:plain:CPU:1:1:2-round2]",
        "test_throughput[alpha:plain:CPU:1:1:2]",
        "test_converges[alpha:plain:CPU:1:2:2-round1]",
        "test_converges[alpha:plain:CPU:1:2:2-round2]",
        "test_throughput[alpha:plain:CPU:1:2:2]",
        "test_speedup[alpha:plain:CPU:1:2:2]",
    ]
    one = "suites/beta/test_beta.py::TestBeta::test_converges[beta:plain:CPU:1:2:1-round1]"
    for number, arguments in ((5, ["suites/beta"]), (1, [one]), (5, ["suites", "--case=alpha:plain:CPU:1:4:3"])):
        assert len(toy.collected(*arguments)) == number


def test_outside_a_tree_with_suites_nothing_is_printed_or_imported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_it(): assert 'pytest_flagperf.running.run' not in sys.modules")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert "flagperf" not in "\n".join(result.outlines[4:])
    assert not (pytester.path / "reports").exists()


def test_pages_and_exit_codes_of_other_projects_stay_unchanged(toy: Toy) -> None:
    toy.pytester.mkpydir("elsewhere").joinpath("test_it.py").write_text("import pytest\n\ndef test_it(): pass\n")
    result = toy.run("elsewhere")
    assert result.ret == 0
    assert toy.runs == []
    outside = toy.root.parent / f"{toy.root.name}-outside"
    outside.mkdir()
    (outside / "test_it.py").write_text("def test_it(): pass\n")
    toy.run(f"--rootdir={outside}", str(outside), f"--html={outside}/page.html", "--self-contained-html")
    assert "p_core" not in (outside / "page.html").read_text()


def test_a_suite_without_a_config_is_skipped_and_an_error_when_it_is_named(toy: Toy) -> None:
    result = toy.run("suites", "--case=alpha:plain:X1:1:1:1", "--case=gamma:plain:CPU:1:1:1", "--case=alpha:plain:CPU")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*alpha:plain:X1:1:1:1*no config*", "*gamma*", "*missing: nnodes*"])
    assert toy.runs == []
    toy.config("alpha", "1x1", "train_batch_size = 8\n")
    result = toy.run("suites", "--vendor=acme", "--nodes=1x1", "--synthetic")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*beta:plain:X1:1:1:1*no config*"])


def test_a_setting_of_the_site_on_the_command_line_starts_nothing(toy: Toy) -> None:
    result = toy.run("suites", "--lease-time=2", "--bind", "none", "--vender=h1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    file = toy.root / "flagperf.toml"
    assert result.stderr.lines[:3] == [
        f"ERROR: --bind is a setting of flagperf.toml: write bind = ... in {file}",
        f"--lease-time is a setting of flagperf.toml: write lease-time = ... in {file}",
        "--vender: unknown option; did you mean vendor?",
    ]
    assert "unrecognized" not in result.stderr.str()
    assert toy.runs == []


def test_an_option_of_another_plugin_with_the_same_name_works(toy: Toy) -> None:
    (toy.root / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--sample')\n")
    assert toy.run("suites", "--sample=1", "--collect-only").ret == 0
    (toy.root / "conftest.py").unlink()  # the control
    assert toy.run("suites", "--sample=1", "--collect-only").ret == pytest.ExitCode.USAGE_ERROR


def test_help_shows_options_in_groups_and_refers_to_the_settings_file(toy: Toy) -> None:
    text = toy.run("--help").stdout.str()
    places = [text.index(f"{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    assert "docs/using.md" in text[places[-1] :]
    for option in OPTIONS:
        assert (f"  --{option.name}" in text) == (option.group != SITE), option.name


def test_a_reference_case_needs_data_but_hosts_are_checked_without(toy: Toy) -> None:
    toy.config("alpha", "1x1", "train_batch_size = 8\n")
    result = toy.run("suites/alpha", "--vendor=acme", "--nodes=1x1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*data*--data-dir*--synthetic*"])
    with (toy.root / "suites" / "alpha" / "plain" / "suite.toml").open("a") as suite:
        suite.write('[[scales.reference.data]]\npath = "train"\nkind = "folder"\n')
    toy.config("alpha", "1x1", "train_batch_size = 4\n")
    result = toy.run("suites/alpha", "--vendor=acme", "--nodes=1x1", "--preflight")
    missing = "flagperf: no training data for 1 case: pass --data-dir=DIR, --case CASE=DIR or --synthetic"
    result.stdout.fnmatch_lines(["localhost", "  ok *", "1 host: *", missing])
    toy.run("suites/alpha", "--vendor=acme", "--nodes=1x1", "--plan").stdout.fnmatch_lines(["* missing *", missing])
    for folder, number in (("none", 1), ("suites", 0)):
        planned = toy.run("suites/alpha", "--vendor=acme", "--nodes=1x1", "--plan", f"--data-dir={folder}").stdout.str()
        assert len(re.findall(r"alpha:plain:X1:1:1:1: no data: /.*/none: no such folder", planned)) == number


def test_a_plan_has_a_line_for_each_case_and_one_without_cases_does_not_pass(toy: Toy) -> None:
    both = ("alpha:plain:CPU:1:1:1", "alpha:plain:CPU:1:2:1")
    for keyword, cases in (("alpha", both), ("alpha and 1x2", both[1:])):
        table = toy.run("suites", "--plan", "-k", keyword).outlines
        start = next(number for number, line in enumerate(table) if line.startswith("case "))
        assert re.fullmatch(r"case +scale +measures +ranks +runtime +data +a round takes", table[start])
        for line, case in zip(table[start + 1 :], cases, strict=False):
            assert re.match(rf"{case} +small +convergence +{case[-3]} +host +included +no estimate", line)
        below = "\n".join(table[start + 1 + len(cases) :])
        assert "flagperf: the vendor adds 4 settings\nflagperf: -v adds " in below
        assert "learning_rate" not in "".join(table)
    assert toy.runs == []
    full = toy.run("suites", "--plan", "-k", "alpha", "-v").stdout
    full.fnmatch_lines(["case * a round takes", both[0], "*learning_rate*", both[1]])
    toy.config("alpha", "1x2", "train_batch_size = 4\n")
    result = toy.run("suites/alpha", "--vendor=acme", "--nodes=1x1", "--plan", "-q")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["*cannot run: alpha:plain:X1:1:1:1: no config_X1x1x1.py of acme*"])
    assert result.stdout.str().count("cannot run: alpha:plain:X1:1:1:1") == 1
    toy.run("suites", "-k", "alpha", "--vendor=acme", "--nodes=1x1", "--plan").stdout.no_fnmatch_line(
        "*available keywords*"
    )
    (toy.root / "empty").mkdir()
    toy.run("empty", "--plan").stdout.fnmatch_lines(
        ["flagperf: no suite here; pass the folder of the suites, as in: *"]
    )


CONF_WITH_UNKNOWN_MODELS = """
VENDOR = 'acme'
FLAGPERF_LOG_LEVEL = '{level}'
FLAGPERF_PATH = '/opt'
CASES = {{
    'llama3_8B:megatron:TG-V200:1:16:1': '/datasets',
    'WaveGlow:plain_1.8:X1:1:1:1': '{data}',
    'alpha:plain:X9:1:1:1': '{data}',
}}
"""


def use_unknown_models(toy: Toy, level: str = "info") -> None:
    """Use a test_conf.py with another spelling of a suite, a chip without a config, and an unknown model."""
    toy.suite("waveglow")
    for model in ("waveglow", "alpha"):
        toy.config(model, "1x1", "train_batch_size = 8\n")
    (toy.root / "data").mkdir()
    (toy.root / "test_conf.py").write_text(CONF_WITH_UNKNOWN_MODELS.format(level=level, data=toy.root / "data"))


def test_unsupported_cases_of_a_test_conf_are_skipped_and_the_others_run(toy: Toy) -> None:
    use_unknown_models(toy)
    result = toy.run("suites", "--test-conf=test_conf.py")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines([
        "*3 cases selected, 1 can run*",
        "*cannot run: alpha:plain:X9:1:1:1: hardware 'X9' is not a chip of acme*",
        "*cannot run: llama3_8B:megatron:TG-V200:1:16:1: model 'llama3_8B': no such folder in suites/*test_conf.py:6)",
        "*waveglow:plain_1.8:X1:1:1:1: the version selects a container image*",
        "*FLAGPERF_PATH has no effect*",
        "not run: llama3_8B:megatron:TG-V200:1:16:1: model*",
    ])  # fmt: skip
    assert "waveglow:plain_1.8:X1:1:1:1" in (toy.runs[-1] / "results.json").read_text()


def test_strict_makes_unknown_models_of_a_test_conf_errors_and_each_is_collected_once(toy: Toy) -> None:
    use_unknown_models(toy)
    result = toy.run("suites", "--test-conf=test_conf.py", "--strict", "-k", "llama3_8B")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["*--strict makes this skip an error: model 'llama3_8B': no such folder*"])
    # The folder of a model has no skips of other models.
    assert "llama3_8B" not in "".join(toy.collected("suites/waveglow", "--test-conf=test_conf.py"))
    everything = toy.run("suites", "--test-conf=test_conf.py", "--collect-only", "-q")
    everything.stdout.fnmatch_lines(["*unsupported[[]llama3_8B:megatron:TG-V200:1:16:1[]]"])


@pytest.mark.parametrize(("level", "words"), [("debug", []), ("error", ["-v"])])
def test_the_log_level_of_a_test_conf_is_used_by_pytest(toy: Toy, level: str, words: list[str]) -> None:
    use_unknown_models(toy, level)
    (toy.root / "conftest.py").write_text(
        "def pytest_collection_finish(session):\n"
        "    option = session.config.option\n"
        "    print(f'verbose {option.verbose} log_level {option.log_level}')\n"
    )
    result = toy.run("suites", "--test-conf=test_conf.py", "--collect-only", "-s", *words)
    result.stdout.fnmatch_lines([f"*verbose 1 log_level {level.upper()}"])


@pytest.mark.parametrize("mode", ["--fixtures", "--collect-only", "--setup-plan -n2", "--setup-only"])
def test_a_mode_of_pytest_that_runs_no_tests_checks_no_host_and_leaves_nothing(toy: Toy, mode: str) -> None:
    result = toy.run("suites/alpha", *mode.split())
    assert result.ret == 0
    assert "preflight: " not in result.stdout.str()
    assert "report.html" not in result.stdout.str()
    assert toy.runs == []


def test_an_error_in_the_collection_checks_no_host_and_leaves_nothing(toy: Toy) -> None:
    (toy.root / "suites" / "alpha" / "test_broken.py").write_text("import missing\n")
    result = toy.run("suites/alpha")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "preflight: " not in result.stdout.str()
    assert toy.runs == []


def test_the_log_names_hosts_programs_messages_and_rounds_and_a_failed_test_shows_its_level(toy: Toy) -> None:
    toy.suite("wrong", base='fault = "nan"\n')
    arguments = ("suites", "-k", "wrong", "--nodes=1x1", "--log-file=debug.log", "--log-file-level=DEBUG")
    result = toy.run(*arguments, "--log-level=INFO")
    lines = (toy.root / "debug.log").read_text().splitlines()
    for expected in (
        "localhost: open ", "localhost: sent hello", "localhost: received leased", "localhost: interpreter ",
        "wrong_plain_CPU_1_1_1 round1: localhost: devices [0]", "wrong_plain_CPU_1_1_1 round1: finished",
    ):  # fmt: skip
        assert any(expected in line for line in lines), expected
    assert "round1: localhost: devices [0]" in result.stdout.str()
    assert "localhost: sent" not in result.stdout.str()
