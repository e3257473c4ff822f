"""Parts of long files: some of a log's lines, and the latest samples at the ends of the sampler's files."""

import itertools
from pathlib import Path

from flagperf_driver import layout
from flagperf_driver.node.logs import partial_read
from flagperf_driver.node.sampling import devices, host_counters
from flagperf_driver.node.sampling.series import LatestSamples


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


def row(columns: tuple[str, ...], **cells: object) -> str:
    names = [column.partition(" [")[0] for column in columns]
    return ",".join(str(cells.get(name, "")) for name in names) + "\n"


def test_each_quantity_has_its_latest_value(tmp_path: Path) -> None:
    samples = LatestSamples(tmp_path)
    assert samples.read() == {"host": {}, "devices": {}}
    of_host, of_devices = tmp_path / layout.HOST_SERIES, tmp_path / layout.DEVICE_SERIES
    of_host.write_text(
        ",".join(host_counters.COLUMNS) + "\n" + row(host_counters.COLUMNS, time=1.0, cpu=0.25, memory=0.5)
    )
    of_devices.write_text(
        ",".join(devices.COLUMNS) + "\n"
        + row(devices.COLUMNS, time=1.0, device=0, power=300.5, temperature=50, throttle="none")
        + row(devices.COLUMNS, time=1.0, device=1, power=310, temperature="nan")
        + row(devices.COLUMNS, time=1.1, device=0, power=305)
        + "#\n1.2,0,99"  # a row that was cut by a full disk, and an incomplete row
    )  # fmt: skip
    expected = {"host": {"cpu": 0.25, "memory": 0.5},
                "devices": {"0": {"power": 305.0, "temperature": 50.0}, "1": {"power": 310.0}}}  # fmt: skip
    assert samples.read() == expected
    with of_devices.open("a") as file:
        file.write("9\n" + row(devices.COLUMNS, time=1.3, device=1, power=320))
    assert samples.read()["devices"] == {"0": {"power": 305.0, "temperature": 50.0}, "1": {"power": 320.0}}


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    line = row(devices.COLUMNS, time=1.0, device=0, power=1)
    last = row(devices.COLUMNS, time=2.0, device=0, power=2)
    (tmp_path / layout.DEVICE_SERIES).write_text(",".join(devices.COLUMNS) + "\n" + line * 200_000 + last)
    assert LatestSamples(tmp_path).read()["devices"] == {"0": {"power": 2.0}}
