"""Broken and hostile replies: a message with the host, the value received and the value expected; the run continues.

On these hosts a real agent runs behind a program that changes some of its words.
"""

import base64
import gzip
import hashlib
import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.engines.agents.collect import _archive
from pytest_flagperf.engines.agents.preflight import HostRequirements, inspect
from pytest_flagperf.engines.agents.unpack import DEFAULT_LIMITS
from pytest_flagperf.hosts import HostError, InvalidReply, Message
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.hosts.replies import LONGEST_LINE, CheckedChannel, Maybe, check
from pytest_flagperf.stored.round_dir import RoundRecord
from pytest_flagperf.typed import Either
from tests.helpers.rounds import Elsewhere, processes_of, run_tiny, tiny_plan

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fresh_cache", "short_tmpdir")]

MIB = 1 << 20
# Passes words on in both directions, and changes those of one type as a rule says.
BETWEEN = """#!{python}
import json, subprocess, sys
kind, change = json.load(open({rule!r}))
child = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE)
for line in child.stdout:
    message = json.loads(line)
    if message.get("type") == kind:
        exec(change)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
sys.exit(child.wait())
"""


def broken_host(tmp_path: Path, kind: str, change: str) -> Elsewhere:
    """Return a host that changes its messages of one type with Python code: ``line`` is sent for ``message``."""
    rule, script = tmp_path / "rule.json", tmp_path / "python"
    rule.write_text(json.dumps([kind, change]))
    script.write_text(BETWEEN.format(python=sys.executable, rule=str(rule)))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    host = Elsewhere("h2")
    host.python = str(script)
    return host


def replaced(**values: object) -> str:
    """The change that puts these values into the message; Python's JSON has NaN."""
    return f"line = json.dumps({{**message, **json.loads({json.dumps(values)!r})}}).encode() + b'\\n'"


def without(key: str) -> str:
    return f"message.pop({key!r}); line = json.dumps(message).encode() + b'\\n'"


def instead(text: str) -> str:
    return f"line = {text.encode()!r} + b'\\n'"


def run_with(tmp_path: Path, host: Elsewhere, number: int = 1) -> RoundRecord:
    return run_tiny(
        tmp_path, tiny_plan(nproc=1, nnodes=2), hosts=[Elsewhere("h1"), host], directory=tmp_path / f"round{number}",
        lease_s=30.0,
    )  # fmt: skip


DEEP = '{"type": "beat", "slow": ' + "[" * 100_000
SAMPLES: dict[str, Message] = {
    "perflog": {"type": "perflog", "rank": 0, "event": "STEP_END", "value": {"loss": "nan"}, "time_ms": 1, "seq": 3},
    "beat": {"type": "beat", "ranks": {}, "slow": {"0": 1.5}, "seq": 4},
    "exit": {
        "type": "exit", "rank": 0, "code": 0, "signal": None, "cause": None, "finished": True, "last_lines": ["a"],
        "seq": 5,
    },
    "over": {"type": "over", "ended_ms": 17, "ended_well": [1], "seq": 6},
}  # fmt: skip
BROKEN = {
    "no key": ("perflog", without("time_ms"), "perflog.time_ms is missing"),
    "text for a number": ("perflog", replaced(rank="0"), "perflog.rank is '0'; expected a whole number from 0"),
    "list for an object": ("perflog", replaced(value=[1]), "perflog.value is a list of 1; expected a table"),
    "NaN": ("beat", replaced(slow={"0": float("nan")}), "beat.slow.0 is NaN; expected a finite number"),
    "huge integer": ("perflog", replaced(time_ms=10**400), "perflog.time_ms is a whole number of 1329 bits"),
    "null": ("exit", replaced(last_lines=None), "exit.last_lines is null; expected a list"),
    "truth for a number": ("exit", replaced(code=True), "exit.code is true; expected a whole number"),
    "no type": ("over", without("type"), "type is null; expected one of"),
    "unknown type": ("over", replaced(type="fire\x1b[2J"), r"type is 'fire\x1b[2J'; expected one of"),
    "no object": ("over", instead("[1, 2]"), "the line '[1, 2]'; expected a JSON object"),
    "cut": ("over", "line = line[:9] + b'\\n'", "expected a whole JSON object"),
    "deep": ("over", instead(DEEP), "expected a whole JSON object"),
    "long line": ("over", f"line = b'x' * {LONGEST_LINE + MIB}", "a line of more than 32 MiB; expected a shorter"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_invalid_message_is_reported_with_the_expected_value(name: str, tmp_path: Path) -> None:
    kind, change, sentence = BROKEN[name]
    words: dict[str, Any] = {"json": json, "message": dict(SAMPLES[kind]), "line": json.dumps(SAMPLES[kind]).encode()}
    exec(change, words)
    (tmp_path / "line").write_bytes(words["line"])
    channel = CheckedChannel("h2", LocalHost("h2").open(["cat", str(tmp_path / "line")]))
    with pytest.raises(InvalidReply) as invalid:
        channel.receive(30)
    channel.close(0.0)
    assert str(invalid.value).startswith("h2 sent an invalid reply: ")
    assert sentence in str(invalid.value)
    assert str(invalid.value).isprintable()


UNASKED = (
    "over",
    """line = 40 * b'{"type": "pong", "clock_ms": 1}\\n'""",
    "pong without an order; expected answers",
)


@pytest.mark.parametrize("broken", [("over", replaced(ended_well=["0"]), "over.ended_well.0 is '0'"), UNASKED])
def test_an_invalid_message_names_the_host_and_the_next_round_runs(
    broken: tuple[str, str, str], tmp_path: Path, short_tmpdir: Path
) -> None:
    kind, change, sentence = broken
    host = broken_host(tmp_path, kind, change)
    end = run_with(tmp_path, host)
    assert end.state == "failed"
    assert end.fault is not None
    assert (end.fault.kind, end.fault.host) == ("agent", "h2")
    assert end.fault.sentence.startswith("h2 sent an invalid reply: ")
    assert sentence in end.fault.sentence
    assert json.loads((tmp_path / "round1" / "round.json").read_text())["fault"]["sentence"] == end.fault.sentence
    assert processes_of(short_tmpdir) == []
    (tmp_path / "rule.json").write_text(json.dumps(["nothing", ""]))  # the control
    end = run_with(tmp_path, host, number=2)
    assert (end.state, end.fault, end.missing, end.warnings) == ("finished", None, (), ())
    assert "FINISHED" in (tmp_path / "round2" / "h2_noderank1" / "rank1.out.log").read_text()


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        ("hello", without("cpus"), "hello.cpus is missing"),
        ("leased", replaced(devices=[]), "leased.devices has 0 devices; expected 1"),
    ],
)
def test_a_host_with_an_invalid_first_reply_is_left_out(kind: str, change: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="needs 2 hosts, 1 available: h1; h2 is left out: h2 sent") as no:
        run_with(tmp_path, broken_host(tmp_path, kind, change))
    assert f"h2 sent an invalid reply: {sentence}" in str(no.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (replaced(data="no base64!"), "h2 sent an invalid reply: chunk.data: "),
        (replaced(size=1 << 50), "the logs are larger than 4 GiB"),
        (replaced(sha256="0" * 64), "the logs arrived damaged: "),
    ],
)
def test_damaged_logs_stay_on_the_host(change: str, sentence: str, tmp_path: Path) -> None:
    end = run_with(tmp_path, broken_host(tmp_path, "chunk", change))
    assert end.state == "finished"
    (missing,) = end.missing
    assert (missing.host, missing.noderank) == ("h2", 1)
    assert sentence in missing.why
    assert "FINISHED" in Path(missing.log_dir, "rank1.out.log").read_text()
    assert sorted(path.name for path in (tmp_path / "round1").glob("*h*")) == ["h1_noderank0"]


def test_logs_that_arrive_damaged_once_are_fetched_again(tmp_path: Path) -> None:
    once = tmp_path / "once"
    change = f"import os\nif not os.path.exists({str(once)!r}): os.mkdir({str(once)!r}); {replaced(sha256='0' * 64)}"
    end = run_with(tmp_path, broken_host(tmp_path, "chunk", change))
    assert once.is_dir(), "nothing came damaged"
    assert (end.state, end.missing) == ("finished", ())


RAW = gzip.compress(bytes(100))


def piece_of(raw: bytes, offset: int, length: int, **more: object) -> Message:
    data = base64.b64encode(raw[offset : offset + length]).decode()
    sha256 = hashlib.sha256(raw).hexdigest()
    return {"type": "chunk", "offset": offset, "data": data, "size": len(raw), "sha256": sha256, **more}


Ask = Callable[[int], Message]
ENDLESS: dict[str, tuple[Ask, str]] = {
    "a size that grows": (
        lambda offset: {**piece_of(bytes(MIB), 0, MIB), "offset": offset, "size": offset + 2 * MIB},
        "chunk.size is 3145728; expected 2097152",
    ),
    "another place": (lambda _: piece_of(RAW, 3, 9), "chunk.offset is 3; expected 0"),
    "no base64": (lambda offset: {**piece_of(RAW, offset, 99), "data": "AA\n=A"}, "expected base64"),
    "empty pieces": (lambda offset: piece_of(RAW, offset, 0), "chunk.data has 0 bytes; expected"),
    "one byte at a time": (lambda offset: piece_of(RAW, offset, 1), "chunk.data has 1 bytes; expected"),
    "a piece that is too long": (lambda offset: piece_of(RAW, offset, 99, size=5), "expected 5 to 5 bytes"),
    "another archive": (
        lambda offset: {**piece_of(bytes(3 * MIB), offset, MIB), "sha256": str(offset)},
        "chunk.sha256 is '1048576'; expected '0'",
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_transfer_without_an_end_ends(name: str) -> None:
    ask, sentence = ENDLESS[name]
    with pytest.raises(InvalidReply) as invalid:
        _archive(Elsewhere("h2"), ask, DEFAULT_LIMITS)
    assert sentence in str(invalid.value)


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        ("facts", without("memory"), "facts.memory is missing"),
        ("facts", replaced(python="new"), "facts.python is 'new'; expected a version"),
        ("facts", replaced(listening={"port": 1}), "facts.listening.token is missing"),
        ("connected", replaced(failed={"h1": 1}), "connected.failed.h1 is 1; expected a string"),
    ],
)
def test_a_checkup_of_nonsense_is_a_finding_of_its_host(kind: str, change: str, sentence: str, tmp_path: Path) -> None:
    findings = inspect([Elsewhere("h1"), broken_host(tmp_path, kind, change)], HostRequirements(pack({}), nnodes=2))
    # A host whose conversation ended early may also be out of reach of the others.
    fatal = [one for one in findings if one.fatal and one.host == "h2" and one.kind != "network"]
    assert [one.kind for one in fatal] == ["host"]
    assert fatal[0].sentence.startswith("h2 sent an invalid reply: ")
    assert sentence in fatal[0].sentence
    assert not [one for one in findings if one.fatal and one.host == "h1"]


@pytest.mark.parametrize("kind", [Maybe(int), Either((bool, [str])), Either(({"error": str}, {"free": int}))])
def test_a_value_of_none_of_several_kinds_is_reported(kind: Either) -> None:
    with pytest.raises(InvalidReply, match=r"h2 sent an invalid reply: fault\.rank is 1\.5; expected "):
        check("h2", {"rank": 1.5}, {"rank": kind}, "fault")
