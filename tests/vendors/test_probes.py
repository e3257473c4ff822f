"""Vendors' probes: recorded and damaged outputs of the tools, and probes as a round uses them.

For each ``samples/NAME.txt``, NAME.json has the expected result of parse(): ``{"devices": [...]}``, or
``{"error": ...}`` with a part of the error message.
"""

import importlib.util
import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from flagperf_driver.node.sampling import probe
from flagperf_driver.node.sampling.devices import QUANTITIES
from flagperf_driver.node.sampling.health import FACTS, PROCESSES, fits
from flagperf_driver.node.sampling.tool_output import NotUnderstood
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.results.measured.machine import is_named
from tests.driver.test_old_python import old_pythons

VENDORS = Path(__file__).resolve().parent.parent.parent / "vendors"
PROBES = sorted(VENDORS.glob("*/probe.py"))
SAMPLES = sorted(VENDORS.glob("*/samples/*.txt"))
each_probe = pytest.mark.parametrize("probe_file", PROBES, ids=lambda path: path.parent.name)
thoroughly = settings(
    max_examples=500, deadline=None, database=None, report_multiple_bugs=False, suppress_health_check=list(HealthCheck)
)
PARSE_ALL = """
import importlib.util, json, sys
for module, text in json.loads(sys.stdin.read()):
    spec = importlib.util.spec_from_file_location("probe", module)
    probe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(probe)
    try:
        print(json.dumps({"devices": probe.parse(text)}))
    except Exception as error:
        print(json.dumps({"error": str(error)}))
"""


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"probe_of_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected(sample: Path) -> dict[str, Any]:
    file = sample.with_suffix(".json")
    if not file.is_file():
        pytest.fail(f"{file}: no such file; expected the result of parse() (docs/vendors.md)", pytrace=False)
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def missing(results: Mapping[str, Any]) -> str:
    """Return what the samples of a vendor, by their names, do not show."""
    readings = [reading for result in results.values() for reading in result.get("devices", ())]
    shown = {
        "two devices in one output": any(len(result.get("devices", ())) > 1 for result in results.values()),
        "truncated.txt": "truncated" in results,
        "error_*.txt": any("error" in result for name, result in results.items() if name.startswith("error")),
        "a device with power": any("power" in reading for reading in readings),
        "a device without power": any("power" not in reading for reading in readings),
    }
    return ", ".join(name for name, is_shown in shown.items() if not is_shown)


def of_vendor(probe_file: Path) -> list[Path]:
    samples = [sample for sample in SAMPLES if sample.parent.parent == probe_file.parent]
    if needs := missing({sample.stem: expected(sample) for sample in samples}):
        pytest.fail(f"{probe_file.parent}/samples: record the tool's output: {needs} (docs/vendors.md)", pytrace=False)
    return samples


def test_a_recorded_output_is_parsed_exactly_or_is_an_error() -> None:
    for sample in SAMPLES:
        module, result = load(sample.parent.parent / "probe.py"), expected(sample)
        text = sample.read_text(encoding="utf-8")
        if "error" in result:
            with pytest.raises(NotUnderstood) as caught:
                module.parse(text)
            assert result["error"] in str(caught.value), sample
        else:
            assert module.parse(text) == result["devices"], sample


def test_missing_samples_are_named() -> None:
    results = {"truncated": {"error": ""}, "error_x": {"error": ""}, "busy": {"devices": [{"power": 1}]}}
    assert missing(results) == "two devices in one output, a device without power"


@each_probe
def test_each_name_in_the_samples_matches_one_chip_of_the_vendor(probe_file: Path) -> None:
    """Preflight compares these names; the vendor's README lists the names that match no chip."""
    vendor = Catalog.scan([VENDORS.parent]).vendors[probe_file.parent.name]
    results = [expected(sample) for sample in of_vendor(probe_file)]
    names = {reading.get("name") for result in results for reading in result.get("devices", ())}
    readme = (probe_file.parent / "README.md").read_text(encoding="utf-8")
    for name in names - {None}:
        chips = [key for key, chip in vendor.chips.items() if is_named(name, key, chip.names)]
        assert len(chips) == 1 or (not chips and f"`{name}`" in readme), f"{name} matches {chips}"


def test_an_old_python_reads_the_same() -> None:
    python = next(iter(old_pythons()), None)
    if python is None:
        pytest.skip("no old Python found")
    work = [(str(sample.parent.parent / "probe.py"), sample.read_text(encoding="utf-8")) for sample in SAMPLES]
    done = subprocess.run(
        [python, "-c", PARSE_ALL], input=json.dumps(work), capture_output=True, text=True, check=True,
        cwd=VENDORS.parent,
    )  # fmt: skip
    for sample, line in zip(SAMPLES, done.stdout.splitlines(), strict=True):
        result, got = expected(sample), json.loads(line)
        assert got == result or result["error"] in got["error"], sample


PIECES = st.one_of(
    st.sampled_from(["", "N/A", "-", "9" * 30, "1e999", "nan", "²", "-5", "1.2.3", "x", "null", "7", "[]", "{}", '""']),
    st.sampled_from(list('|/-+:"{}[]\n %\x1c\u2028')),
    st.text(max_size=20),
)
_WORD = re.compile(r"[^\s|/,:]+")


@st.composite
def damaged(draw: st.DrawFn, good: list[str]) -> str:
    """Return a good output with a few words replaced; the rest is as a parser expects it."""
    text = draw(st.sampled_from(good))
    words = list(_WORD.finditer(text))
    replaced = draw(st.lists(st.sampled_from(words), min_size=1, max_size=4, unique=True))
    for word in sorted(replaced, key=lambda match: -match.start()):
        text = text[: word.start()] + draw(PIECES) + text[word.end() :]
    return text


@st.composite
def truncated(draw: st.DrawFn, whole: list[str]) -> str:
    """Return an output with a part removed and another text in its place."""
    text = draw(st.sampled_from(whole))
    start, end = sorted(draw(st.integers(0, len(text))) for _ in range(2))
    return text[:start] + draw(PIECES) + text[end:]


def texts(good: list[str], whole: list[str]) -> st.SearchStrategy[str]:
    """Return any text, a tool's lines in any order, and damaged and truncated outputs."""
    lines = sorted({line for text in whole for line in text.splitlines(keepends=True)})
    jumbled = st.lists(st.one_of(st.sampled_from(lines), PIECES), max_size=60).map("".join)
    return st.one_of(damaged(good), damaged(good), truncated(whole), jumbled, st.text())


def check_any_text(module: Any, probe_file: Path, how: settings) -> None:
    outputs = {sample.read_text(encoding="utf-8"): "devices" in expected(sample) for sample in of_vendor(probe_file)}

    @how
    @given(texts([text for text, is_good in outputs.items() if is_good], list(outputs)))
    def check(text: str) -> None:
        try:
            readings = module.parse(text)
        except NotUnderstood:
            return
        assert readings
        for reading in readings:
            assert isinstance(reading["device"], int)
            assert reading.keys() <= {"device", *QUANTITIES, *FACTS, PROCESSES}
            assert all(isinstance(reading[n], str if n == "throttle" else float) for n in QUANTITIES if n in reading)
            assert all(fits(name, reading[name]) for name in FACTS if name in reading)
            for process in reading.get(PROCESSES, ()):
                assert isinstance(process["pid"], int)
                assert process.keys() <= {"pid", "name", "memory"}
            json.dumps(reading, allow_nan=False)

    check()


@each_probe
@pytest.mark.integration
def test_a_parser_raises_only_its_own_error_for_any_text(probe_file: Path) -> None:
    check_any_text(load(probe_file), probe_file, thoroughly)


PLANTED: dict[str, Callable[..., object]] = {
    "figure": lambda text, *units: float(text.rstrip("".join(units) + " ")),
    "index": int,
    "first": lambda text, unit: float(text.split(unit)[0].split()[-1]),
    "used_of_total": lambda text, *_: tuple(float(part) for part in text.split("/")),
    "_text": str.strip,
    "_word": lambda cell: cell[2:][0],
    "_watts": lambda power: power / 1000,
    "after": lambda label, text: text.split(label)[1].split()[0],
}
"""Naive versions of the parsers' functions, which fail for bad output."""


@pytest.mark.parametrize(
    ("probe_file", "name"),
    [
        pytest.param(path, name, id=f"{path.parent.name}-{name}")
        for path in PROBES
        for name in PLANTED
        if hasattr(load(path), name)
    ],
)
@pytest.mark.integration
def test_a_planted_bug_is_found_in_every_parser(probe_file: Path, name: str) -> None:
    """The control of the previous test."""
    module = load(probe_file)
    setattr(module, name, PLANTED[name])
    with pytest.raises((ValueError, IndexError, TypeError, AttributeError, AssertionError)) as caught:
        check_any_text(module, probe_file, settings(thoroughly, max_examples=5000, phases=[Phase.generate]))
    assert not isinstance(caught.value, NotUnderstood)


@each_probe
def test_deep_and_long_texts_are_errors_without_delay(probe_file: Path) -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "9" * 100_000, "|" * 100_000, "| 0 " * 30_000):
        for prefix in ("", "{"):
            with pytest.raises(NotUnderstood):
                load(probe_file).parse(prefix + text)


@each_probe
def test_preflight_sees_the_devices(tmp_path: Path, probe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = max(of_vendor(probe_file), key=lambda sample: len(str(expected(sample).get("devices", ""))))
    tool = tmp_path / load(probe_file).COMMAND[0]
    tool.write_text(f"#!/bin/sh\nexec cat {sample}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    survey = probe.survey(str(probe_file))
    assert survey["error"] is None
    for device, reading in zip(survey["devices"], expected(sample)["devices"], strict=True):
        assert device["index"] == reading["device"]
        assert device[PROCESSES] == reading.get(PROCESSES, [])
        assert {name: device[name] for name in FACTS} == {name: reading.get(name) for name in FACTS}
