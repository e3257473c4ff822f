"""Some of a long file's lines: whole ones, from its begin to its end."""

import itertools
from pathlib import Path

from flagperf_driver.node.logs import partial_read


def numbered(path: Path, lines: int) -> Path:
    path.write_bytes(b"".join(b"line %09d\n" % number for number in range(lines)))
    return path


def test_a_short_file_is_read_whole_but_lines_longer_than_a_block(tmp_path: Path) -> None:
    path = numbered(tmp_path / "log", 3)
    with path.open("ab") as out:
        out.write(b"torn")
    assert list(partial_read.read_lines(path)) == [*(b"line %09d\n" % number for number in range(3)), b"torn"]
    assert list(partial_read.read_lines(path, 1000)) == list(partial_read.read_lines(path))
    (tmp_path / "log").write_bytes(b"first\n" + b"x" * 100_000 + b"\nlast\n")
    assert list(partial_read.read_lines(tmp_path / "log", 16 * 1024)) == [b"first\n", b"last\n"]


def test_of_a_long_file_whole_lines_evenly_apart_and_both_ends(tmp_path: Path) -> None:
    path = numbered(tmp_path / "log", 100_000)
    found = list(partial_read.read_lines(path, 64 * 1024))
    assert sum(map(len, found)) <= 64 * 1024
    numbers = [int(line.removeprefix(b"line ")) for line in found]
    assert all(len(line) == 15 for line in found)
    assert (numbers[0], numbers[-1]) == (0, 99_999)
    assert numbers == sorted(set(numbers))
    apart = [later - earlier for earlier, later in itertools.pairwise(numbers)]
    assert max(apart) < 2 * 100_000 / 16
