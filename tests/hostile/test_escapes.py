"""Text from a rank cannot control the terminal, nor change what a report seems to say; its own log keeps every byte."""

import csv
import json
import re
import shutil
import sys
import unicodedata
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pytest_flagperf.commands import main
from pytest_flagperf.printable import printable
from pytest_flagperf.problems import Problems
from pytest_flagperf.progress import note, subscribed
from pytest_flagperf.report.terminal.live import TerminalLines, rank_logs
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import FormatError, files
from pytest_flagperf_export.performance import performance_tables
from tests.helpers.pseudo_terminal import Terminal
from tests.helpers.results_help import edit_json, recorded, replay_dir
from tests.plugin.conftest import TRAINING, Toy
from tests.plugin.conftest import toy as toy  # a fixture

# A window title, colours, cursor moves, an overwritten line, CSI of C1, writing directions, characters of zero width.
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[1A\x1b[2K\x1b[31m\x9b2K\x90q\x9c\x08\x7f\rall passed \u202efdp\u202c \u2066x\u2069"
    "\u200e\u200f\u061c\u2028\u2029\u200b\ufeff\u2060\xad\U000e0041"
)
ORDINARY = "显存不足：第３步 déjà vu Ünïcödé \N{FAMILY} 👨\u200d👩\u200d👧 ❤️ 한국어 العربية עברית ελληνικά"
FORGED = "first line\nflagperf: 1 of 1 case passed"
# What a terminal may get beside text: pytest's colours, lines that the next replaces, the way back to pytest's line.
OURS = re.compile(r"\x1b\[[0-9;]*m|\r\x1b\[K(?:\x1b\[A\x1b\[\d+G)?|\r(?=collect)|\r\n")


def hidden(text: str) -> list[str]:
    """Return every character that is not visible as itself, by its Unicode category; joiners are part of emoji."""
    return [
        char
        for char in text
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\n\t\u200d"
    ]


@pytest.fixture
def escaping(toy: Toy) -> Toy:
    """A tree whose ranks name their device by hostile text, print it, and fail with it or not."""
    text = TRAINING.read_text(encoding="utf-8")
    head = f"HOSTILE, ORDINARY, FORGED = {HOSTILE!r}, {ORDINARY!r}, {FORGED!r}\n"
    text = text.replace('"device": "toy"', '"device": HOSTILE + ORDINARY, "precision": "=1|2" + HOSTILE')
    text = text.replace(
        '    if kind == "hang":',
        "    print(HOSTILE, ORDINARY, '::error::from a rank ##[error]from a rank', flush=True)\n"
        '    if kind == "escapes":\n'
        "        raise RuntimeError(HOSTILE + ORDINARY + FORGED)\n"
        '    if kind == "hang":',
    )
    for program in toy.root.glob("suites/*/plain/run_pretraining.py"):
        program.write_text(head + text, encoding="utf-8")
    return toy


@dataclass(frozen=True)
class Seen:
    """The output of a run: the terminal's text, and the text of each report by name."""

    terminal: str
    places: dict[str, str]
    log: bytes


def on_a_terminal(toy: Toy, *arguments: str) -> Seen:
    """Run pytest as a user does, at a terminal and on GitHub."""
    summary = toy.root / "summary.md"
    env = {"TERM": "xterm", "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    terminal = Terminal(argv, columns=300, rows=50, cwd=toy.root, env=env)
    terminal.end(120)
    terminal.close()
    (run,) = toy.runs
    names = ("junit.xml", "results.csv", "results.json", "report.html")
    places = {name: (run / name).read_text(encoding="utf-8") for name in names}
    places["summary"] = summary.read_text(encoding="utf-8")
    (log,) = run.glob("*/round1/*/rank0.out.log")
    return Seen(terminal.printed, places, log.read_bytes())


CASE = ("suites", "-k", "alpha and 1:1:1 and converges", "-v", "-s")


@pytest.mark.slow
def test_output_of_a_rank_cannot_control_terminal_or_reports(escaping: Toy, capfd: pytest.CaptureFixture[str]) -> None:
    seen = on_a_terminal(escaping, *CASE, "--set=fault=escapes")
    text = OURS.sub("\n", seen.terminal)
    assert hidden(text) == []
    for place, shown in seen.places.items():
        assert hidden(shown) == [], place
    # What was escaped can be read, and other text is as it was.
    assert r"RuntimeError: \x1b]0;owned\x07\x1b[2J" in text
    assert ORDINARY in text
    for place in ("junit.xml", "report.html", "results.json", "summary"):
        assert ORDINARY in seen.places[place], place
    lines = [line for line in text.splitlines() if line.startswith("flagperf: ")]
    assert [line for line in lines if "passed" in line] == [lines[-1]]
    assert "0 of 1 case passed, 1 failed" in lines[-1]
    # GitHub takes its commands from a line's beginning, and those in brackets from anywhere.
    assert r"[rank 0]" in text
    assert r"\x23#[error]from a rank" in text
    assert "##[error]" not in text
    assert not any(line.lstrip().startswith("::error") for line in text.splitlines())
    # The rank's log is as the rank wrote it.
    assert HOSTILE.encode() in seen.log
    properties = {one.get("name"): one.get("value") for one in ET.fromstring(seen.places["junit.xml"]).iter("property")}
    assert properties["environment.device"] == printable(HOSTILE + ORDINARY)
    (row,) = csv.DictReader(seen.places["results.csv"].splitlines())
    assert row["precision"].startswith("'=1|2"), "a spreadsheet would compute it"
    (run,) = map(str, escaping.runs)
    for command in (["show", run], ["compare", run, run], ["export", run, "--format=markdown"]):
        main(command)
    assert hidden("".join(capfd.readouterr())) == []
    assert hidden((escaping.runs[0] / "performance.md").read_text(encoding="utf-8")) == []


@pytest.mark.slow
def test_without_the_escaping_all_of_it_arrives(escaping: Toy) -> None:
    """The control: without the escaping, the reports above have hidden characters."""
    (escaping.root / "conftest.py").write_text(
        "import re\nfrom pytest_flagperf import printable\n"
        "printable._HIDDEN = printable._COMMAND = re.compile('(?!)')\n"
    )
    seen = on_a_terminal(escaping, *CASE, "--set=fault=escapes")
    assert "\x1b]0;owned\x07" in seen.terminal
    assert "\u202e" in hidden(seen.terminal)
    assert "##[error]from a rank" in seen.terminal
    assert set("\x9b\u202e\u200b") <= set(hidden(seen.places["report.html"]))


@pytest.mark.slow
def test_every_hidden_character_is_escaped_and_no_other() -> None:
    shown = {chr(code): printable(chr(code)) for code in range(sys.maxunicode + 1)}
    changed = {char for char, text in shown.items() if text != char}
    assert all(text.isascii() and text.isprintable() for char, text in shown.items() if char in changed)
    kinds = {unicodedata.category(char) for char in changed}
    assert kinds <= {"Cc", "Cf", "Cs", "Zl", "Zp", "Cn"}
    left = {char for char in shown if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")} - changed
    assert left == {"\n", "\t"}
    assert set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u200b\u2060\ufeff") <= changed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *(
            (text, text)
            for text in (ORDINARY, "a\tb\nc", "::1 port 22: refused", "# 1, ## 2, C#[3]", "50 %", "\xa0\u3000")
        ),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("10 %\r20 %", "10 %\\r20 %"),
        ("::error::x", "\\x3a:error::x"),
        ("one\n  ::add-mask::x", "one\n  \\x3a:add-mask::x"),
        ("::warning file=a,line=1::x", "\\x3a:warning file=a,line=1::x"),
        ("\n\n \u3000::group::x", "\n\n \u3000\\x3a:group::x"),
        ("a ##[group]b", "a \\x23#[group]b"),
        ("##vso[task.complete]", "\\x23#vso[task.complete]"),
    ],
)
def test_ordinary_text_is_not_changed_and_no_text_is_a_command_of_a_ci_service(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_text_of_an_error_is_printable_and_progress_and_notes_are_lines() -> None:
    """Errors quote Docker, builders of environments and hosts."""
    problems = Problems([f"h1: docker build failed:\n{HOSTILE}"])
    assert hidden(str(problems)) == hidden("".join(problems.problems)) == []
    assert str(problems).startswith("h1: docker build failed:\n\\x1b]0;owned")
    assert hidden(str(FormatError(HOSTILE))) == []
    written: list[str] = []
    lines = TerminalLines(written.append, width=60)
    with subscribed(lines.subscriber, rank_logs(lines.line, records=False)):
        note("line", text=f"h1 is lost ({HOSTILE})\n{FORGED}")
        note("activity", text=f"building {HOSTILE}")
        note("log", rank=0, text=HOSTILE)
    text = OURS.sub("", "".join(written))
    assert hidden(text) == []
    assert not any(line.startswith("flagperf: ") for line in text.splitlines())


def test_a_stored_run_from_elsewhere_is_shown_without_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Names of chips, reasons for low clocks and verdicts come from files of another machine."""
    run = tmp_path / "run"
    round_dir = Path(shutil.copytree(replay_dir("throttled"), run / "bert_plain" / "round1"))
    (host,) = round_dir.glob("*_noderank0")
    report = json.loads((host / "monitors.json").read_text())
    devices = [{**device, "name": f"chip {HOSTILE}"} for device in report["devices"]]
    edit_json(host / "monitors.json", devices=devices, errors=[{"sentence": HOSTILE, "times": 1}])
    series = host / "devices.series.csv"
    text = series.read_text()
    (reason, *_) = {"sw_thermal", "hw_thermal", "hw_slowdown"} & set(re.findall(r"\w+", text))
    series.write_text(text.replace(reason, f"{reason}\x1b[2J\u202e"), encoding="utf-8")
    outcome = measure(round_dir)
    assert hidden(json.dumps(outcome.to_json(), ensure_ascii=False)) == []
    store.save_outcome(round_dir, outcome)
    edit_json(round_dir / "outcome.json", warnings=[HOSTILE + FORGED])
    (run / "bert_plain" / "verdicts").mkdir()
    bad = {"name": "x", "ok": False, "got": HOSTILE, "expected": "y", "sentence": HOSTILE}
    body = {"schema": 1, "test": "t", "verdicts": [bad]}
    files.write(run / "bert_plain" / "verdicts" / "t.json", body)
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--to", str(page)]) == 0
    assert main(["show", str(run)]) == 0
    shown = capfd.readouterr().out
    assert "\\x1b]0;owned" in shown
    assert f"{reason}\\x1b[2J" in page.read_text()
    assert hidden(shown) == hidden(page.read_text()) == []
    assert [line for line in shown.splitlines() if line.startswith("flagperf: ")] == [shown.splitlines()[-1]]


def test_a_cell_of_a_markdown_table_is_one_cell_and_no_html() -> None:
    outcome = recorded("converged_1x1")
    hostile = replace(outcome, environment={**outcome.environment, "precision": "fp32 | 9.9 |\n| <b>x</b>"})
    runs = [StoredRun(Path("run"), None, (CaseResult(outcome.case, (hostile,)),))]
    table = performance_tables(runs)
    (row,) = [line for line in table.splitlines() if "fp32" in line]
    assert "fp32 \\| 9.9 \\| \\| &lt;b&gt;x&lt;/b&gt;" in row
