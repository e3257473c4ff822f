"""Where the time of the tests goes: what ``python -m tests`` prints after its phases."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

FILES = 40
TESTS = 25


class Test(NamedTuple):
    file: str
    name: str
    seconds: float
    """Set-up, call and teardown."""


def read(junit: Path) -> Iterator[Test]:
    """Return the tests of a file that ``--junitxml`` wrote; none if pytest ended before it wrote the file."""
    if not junit.exists():
        return
    for case in ET.parse(junit).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        yield Test(file, case.get("name", ""), float(case.get("time", 0)))


def lines(tests: Iterable[Test]) -> list[str]:
    tests = list(tests)
    seconds: Counter[str] = Counter()
    for test in tests:
        seconds[test.file] += test.seconds  # type: ignore[assignment] # a Counter of floats
    items = Counter(test.file for test in tests)
    slowest = sorted(tests, key=lambda test: -test.seconds)[:TESTS]
    return [
        f"the {FILES} slowest files of {len(items)}: seconds, items",
        *(f"{of_file:7.1f} {items[file]:5} {file}" for file, of_file in seconds.most_common(FILES)),
        f"the {TESTS} slowest tests of {len(tests)}: seconds",
        *(f"{test.seconds:7.1f} {test.file}::{test.name}" for test in slowest),
    ]
