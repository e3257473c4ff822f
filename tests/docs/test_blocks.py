"""The code blocks of the documents are run: commands by the programs, TOML by its readers, Python by Python.

Commands that need hardware are planned (``--plan``) by the real pytest. Pages that another test follows step by step
are left to that test; both languages of a page have the same blocks.
"""

import importlib
import importlib.util
import inspect
import io
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from docsite import blocks
from docsite.blocks import Block
from pytest_flagperf.catalog import toml_reader
from pytest_flagperf.catalog.vendor import VendorToml
from pytest_flagperf.commands import all_commands, parser
from pytest_flagperf.commands import main as flagperf
from pytest_flagperf.hosts.cluster import read_cluster
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.settings import read_settings
from pytest_flagperf_slurm.config import read_slurm
from tests.helpers.recording import Training
from tests.helpers.results_help import replay_dir, with_metric
from tests.helpers.stored_runs import trained
from tests.helpers.trees import write
from tools import tool_parser

REPO = Path(__file__).resolve().parents[2]
BLOCKS = blocks.all_blocks(REPO)
FOLLOWED: Mapping[str, str | None] = {
    "docs/vendors.md": "Elsewhere",  # tests/commands/test_new_vendor.py
    "docs/models.md": "suite.toml",  # tests/commands/test_new_model.py
    "docs/measurements.md": None,  # tests/docs/test_how_to.py
    "docs/coming-from-flagperf.md": "The table of names",
    "docs/extending.md": None,  # tests/plugin/test_example_plugin.py
    "docs/python.md": None,  # tests/results/test_python_api.py
    "docs/how-to-vendor.md": None,  # tests/docs/test_how_to.py
    "docs/how-to-model.md": None,
}
"""Pages that another test follows up to a heading, or to the end."""
RUNS = ("run20261121061129", "run20261121063131", "run20261121093000", "run20261122061129")
NAMES = {
    "RUN...": "reports", "RUN": "reports/run20261121061129", "REV": "HEAD", "DIR": "folder", "NAME": "resnet50",
}  # fmt: skip
"""Values for the placeholders of commands."""
TOOLS = ("git", "mkdir", "cp", "ls", "rm")
"""Programs that run as they are, in the folder of the test."""


def following(block: Block) -> bool:
    """Whether another test runs a block."""
    if block.page not in FOLLOWED:
        return False
    heading = FOLLOWED[block.page]
    before, found, _ = (REPO / block.page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found or heading is None, f"{block.page}: no heading {heading}"
    return block.line <= before.count("\n")


def is_translation(block: Block) -> bool:
    return block.page.endswith(".zh.md")


def to_run(*languages: str) -> list[Block]:
    return [
        block
        for block in BLOCKS
        if block.language in languages and not (block.exempt or following(block) or is_translation(block))
    ]


def test_both_languages_have_the_same_blocks() -> None:
    def texts(name: str) -> list[tuple[str, ...]]:
        of_page = [block for block in BLOCKS if block.page == name]
        return [(*block.commands,) if block.language == "sh" else (block.text,) for block in of_page]

    translations = {block.page for block in BLOCKS if is_translation(block)}
    assert [page for page in translations if texts(page) != texts(page.replace(".zh.md", ".md"))] == []


@pytest.fixture(scope="module")
def place_to_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the suites, the vendors, stored runs and everything else that the commands name."""
    folder = tmp_path_factory.mktemp("blocks")
    for name in ("suites", "vendors"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for number, name in enumerate(RUNS):
        times = (0.02, 0.02 - (number + 1) / 50_000)
        rounds = (
            Training("", round=turn, rounds=2, step_s=step_s, scale="reference") for turn, step_s in enumerate(times, 1)
        )
        trained(folder / "reports" / name, *rounds)
        (folder / "reports" / name / "options.json").write_text('{"vendor": "cpu"}')
    for name in ("reports/published", "data/glm", "data/bert", "data/imagenet", "folder", "docs", "pictures"):
        (folder / name).mkdir(parents=True)
    for copy in ("tmp/run", f"data/bench/reports/{RUNS[0]}"):
        shutil.copytree(folder / "reports" / RUNS[0], folder / copy)
    shutil.copy(next((replay_dir("converged_1x1")).glob("*/rank0.out.log")), folder)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


class Commands:
    """Runs the commands of the documents in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, command: str) -> None:
        """Run each program of a command line; raise AssertionError with the output if it fails."""
        for part in re.split(r"\s&&\s", command):
            words = [self._filled(word) for word in shlex.split(part)]
            while re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words == [".", ".venv/bin/activate"]:
                continue  # the tests run in the environment that make setup creates
            program, *arguments = words
            name = program.rpartition("/")[2]
            if name in TOOLS:
                subprocess.run(words, cwd=self.folder, check=True)
                continue
            runner: Callable[..., None] | None = getattr(self, f"_{name.replace('-', '_')}", None)
            assert runner is not None, f"no function runs {name}; add it, or exempt the block with the reason"
            runner(*arguments)

    def _filled(self, word: str) -> str:
        """Return a word with values for placeholders, and with paths of this folder."""
        word = re.sub(r"\b(?:RUN\.\.\.|RUN\b|REV\b|DIR\b|NAME\b)", lambda match: NAMES[match[0]], word)
        return re.sub(r"(^|=)/(data|tmp)/", rf"\1{self.folder}/\2/", word)

    def _pytest(self, *words: str) -> None:
        arguments = list(words)
        if not arguments[0].startswith("suites"):
            tests = next(word for word in arguments if not word.startswith("-"))
            assert (REPO / tests).exists(), tests
            return
        for option, count in (("--preflight", 1), ("-n", 2), ("--strict", 1)):
            if option in arguments:
                at = arguments.index(option)
                del arguments[at : at + count]
        resumed = [n for n, word in enumerate(arguments) if word.startswith("--resume")]
        more = ["--collect-only", "-q"] if resumed else [] if "--plan" in arguments else ["--plan"]
        output = self._in_process(
            lambda: pytest.main([*arguments, *more, "-p", "no:cacheprovider", "-p", "no:randomly"])
        )
        assert re.search(r"planned|test_converges|test_throughput|cases? selected", output), output

    def _flagperf(self, *words: str) -> None:
        if words[0] == "wheels":  # tests/benchmarks/test_gpu_offline.py downloads some
            (self.folder / parser(all_commands()).parse_args(words).folder).mkdir()
        else:
            self._in_process(lambda: flagperf(words), codes=(0, 1))

    def _in_process(self, call: Callable[[], Any], folder: Path | None = None, codes: tuple[int, ...] = (0, 5)) -> str:
        output, path = io.StringIO(), sys.path[:]
        with chdir(folder or self.folder), redirect_stdout(output), redirect_stderr(output):
            try:
                code = int(call())
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 2
            finally:
                sys.path[:] = path
                for name, module in list(sys.modules.items()):
                    if str(getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                        del sys.modules[name]
        assert code in codes, f"exit code {code}\n{output.getvalue()[-3000:]}"
        return output.getvalue()

    def _salloc(self, *words: str) -> None:
        self._pytest(*words[words.index("pytest") + 1 :])

    def _make(self, *words: str) -> None:
        command = ["make", "--dry-run", "--old-file=setup", *words]
        subprocess.run(command, cwd=REPO, check=True, capture_output=True)

    def _pip(self, action: str, *words: str) -> None:
        assert action == "install"
        for word in words:
            assert importlib.util.find_spec(word) or (REPO / word / "pyproject.toml").is_file(), word

    def _python(self, dash: str, module: str, *words: str) -> None:
        assert dash == "-m"
        if module == "pytest":
            self._pytest(*words)
        elif module.startswith("tools."):
            tool_parser(importlib.import_module(module)).parse_args(words)
        else:
            assert importlib.util.find_spec(module) is not None, module


@pytest.mark.integration
@pytest.mark.parametrize("page", sorted({block.page for block in to_run("sh", "console")}))
def test_the_commands_of_a_page_run(page: str, place_to_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = place_to_run / "flagperf.toml"
    settings.unlink(missing_ok=True)
    if page == "docs/cluster.md":  # its commands need its example of flagperf.toml
        fill_home(place_to_run, monkeypatch)
        of_page = next(one for one in BLOCKS if one.page == page and one.language == "toml")
        settings.write_text(of_page.text, encoding="utf-8")
    problems = []
    for block in (one for one in to_run("sh", "console") if one.page == page):
        assert block.commands, block.place
        for command in block.commands:
            try:
                Commands(place_to_run).run(command)
            except (AssertionError, subprocess.CalledProcessError) as error:
                problems.append(f"{block.place}: {command}: {error}")
    assert problems == [], "\n".join(problems)


@pytest.mark.integration
def test_the_examples_of_the_readmes_run(place_to_run: Path) -> None:
    (place_to_run / "flagperf.toml").unlink(missing_ok=True)
    texts = [(REPO / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    examples = [code for text in texts for code in re.findall(r"\| `([^`]+)` \|", text) if blocks.is_command(code)]
    assert len(examples) == 12
    for example in set(examples):
        shutil.rmtree(place_to_run / "suites" / "mixer", ignore_errors=True)
        Commands(place_to_run).run(example)
    shutil.rmtree(place_to_run / "suites" / "mixer", ignore_errors=True)


@pytest.mark.integration
def test_a_wrong_command_fails_and_the_slips_print_what_their_page_shows(place_to_run: Path) -> None:
    (place_to_run / "flagperf.toml").unlink(missing_ok=True)
    slips = re.findall(r"(?m)^\| `((?:pytest|flagperf) [^`]+)` \| `([^`]+)` \|$", (REPO / "docs/faults.md").read_text())
    assert len(slips) == 6
    wrong = "pytest suites --no-such-option; make none; pip install packages/none; python -m no_such_module; ls none"
    for command, message in (*slips, *((command, "") for command in wrong.split("; "))):
        with pytest.raises((AssertionError, subprocess.CalledProcessError)) as failed:
            Commands(place_to_run).run(command)
        assert message in str(failed.value), command


VENDOR = next(block for block in BLOCKS if block.page == "docs/vendors.md" and block.text.startswith('name = "Maker"'))


def read_toml(block: Block, folder: Path) -> None:
    text, table = block.text, tomllib.loads(block.text)
    if "applied" in table:
        assert table.keys() <= {"applied", "without_effect", "base"}
        original = tomllib.loads((REPO / "suites/glm/pytorch/config/original.toml").read_text(encoding="utf-8"))
        assert all(any(entry.items() <= one.items() for one in original["applied"]) for entry in table["applied"])
    elif block is VENDOR or (block.page == "docs/vendors.md" and "expected" not in table):
        toml_reader.read(VendorToml, write(folder, "vendor.toml", text if block is VENDOR else VENDOR.text + text))
    else:
        (folder / "suites").mkdir(exist_ok=True)
        settings = read_settings({}, write(folder, "flagperf.toml", text.replace("/opt/our-suites", str(REPO))).parent)
        slurm = settings.engine_tables.get("slurm")
        for given, reader in ((settings.cluster_table, read_cluster), (slurm, read_slurm)):
            if given is not None:
                reader(given.table, given.file)


def fill_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this folder the home, with the files that the blocks name."""
    monkeypatch.setenv("HOME", str(folder))
    for name in (".ssh/id_ed25519", ".ssh/known_hosts"):
        write(folder, name, "").chmod(0o600)


def test_a_reader_accepts_each_block_of_toml_and_no_wrong_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_home(tmp_path, monkeypatch)
    for block in to_run("toml"):
        try:
            read_toml(block, tmp_path)
        except Exception as error:
            raise AssertionError(block.place) from error
        if block.text.startswith("# flagperf.toml"):
            with pytest.raises(Exception, match="no_such_key"):
                read_toml(Block(block.page, 1, "toml", "no_such_key = 1\n" + block.text), tmp_path)


@pytest.mark.parametrize("block", to_run("python"), ids=lambda block: block.place)
def test_the_python_of_a_block_runs(block: Block, place_to_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(min(REPO.glob("vendors/*/*/config/config_common.py")).parent)
    names: dict[str, Any] = {}
    with chdir(place_to_run):
        exec(compile(block.text, block.place, "exec"), names)
        outcome = with_metric(measure(replay_dir("converged_1x1")), "input_wait_share", 0.01)
        outcome = with_metric(outcome, "peak_memory", 2**30)
        for name, function in list(names.items()):
            if name.startswith("test_"):
                fixtures = {"training": outcome, "case": outcome.case}
                function(**{parameter: fixtures[parameter] for parameter in inspect.signature(function).parameters})
