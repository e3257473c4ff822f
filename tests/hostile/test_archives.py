"""Log archives from a broken or hostile host: no file is written outside the folder, and unpacking ends."""

import gzip
import io
import os
import stat
import tarfile
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.agent.archive import GIB, LogLimits
from pytest_flagperf.engines.agents.unpack import DamagedArchive, LogsTooLarge, unpack
from pytest_flagperf.hosts import HostError

PRECIOUS = "precious\n"
EVIL = b"evil\n"
MIB = 1 << 20
LIMITS = LogLimits(16 * MIB, 200)


class Hostile:
    """A builder of archives; the entries that ``add`` cannot make are raw blocks."""

    def __init__(self, outside: Path) -> None:
        self.outside = outside
        self.raw = io.BytesIO()

    def add(
        self, name: str, kind: bytes = tarfile.REGTYPE, to: str = "", content: bytes = EVIL, **more: object
    ) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, to
        info.size = len(content) if kind == tarfile.REGTYPE else 0
        for key, value in more.items():
            setattr(info, key, value)
        form: Any = tarfile.PAX_FORMAT if info.pax_headers else tarfile.GNU_FORMAT
        self.raw.write(info.tobuf(form, "utf-8", "surrogateescape"))
        if kind == tarfile.REGTYPE:
            self.content(content)

    def content(self, content: bytes) -> None:
        self.raw.write(content + bytes(-len(content) % 512))

    def header(self, kind: bytes, content: bytes, size: int | None = None) -> None:
        info = tarfile.TarInfo("header")
        info.type, info.size = kind, len(content) if size is None else size
        self.raw.write(info.tobuf(tarfile.GNU_FORMAT))
        self.content(content)

    def packed(self) -> bytes:
        return gzip.compress(self.raw.getvalue() + bytes(1024), 1)


Make = Callable[[Hostile], None]


def added(*entries: str | tuple[Any, ...], **more: Any) -> Make:
    """Add these entries: their names, with a kind and a target if they are no files; ``{outside}`` is that folder."""

    def make(it: Hostile) -> None:
        for entry in entries:
            words: tuple[Any, ...] = (entry,) if isinstance(entry, str) else entry
            filled: list[Any] = [word.format(outside=it.outside) if isinstance(word, str) else word for word in words]
            it.add(*filled, **more)

    return make


TWICE = added(("log", tarfile.REGTYPE, "", b"first\n"), ("log", tarfile.REGTYPE, "", b"second\n"))


def pax_names(it: Hostile) -> None:
    for name in ("../outside/precious", str(it.outside / "precious"), "fine"):
        it.add("harmless", pax_headers={"path": name})


LINKS = "symbolic link"
STRAY = "absolute path or '..'"
UNPRINTABLE = "control characters or not UTF-8"
CLASH = "another entry has that name"
UNPACKED: dict[str, tuple[Make, list[str], list[str]]] = {
    "absolute": (added("{outside}/precious", "/etc/evil"), [], [STRAY]),
    "parent": (added("../outside/precious", "a/../../outside/precious", "..", "a/.."), [], [STRAY]),
    "no name": (added("", ".", "./a", "a//b", "/"), [], [STRAY]),
    "symbolic link": (added(("way", tarfile.SYMTYPE, "{outside}/precious")), [], [LINKS]),
    # The file of the link's name is a real folder then, below which the file is harmless.
    "through a link": (added(("way", tarfile.SYMTYPE, "{outside}"), "way/precious"), ["way", "way/precious"], [LINKS]),
    "hard link": (added(("copy", tarfile.LNKTYPE, "{outside}/precious")), [], ["hard link"]),
    "hard link and file": (added(("copy", tarfile.LNKTYPE, "{outside}/precious"), "copy"), ["copy"], ["hard link"]),
    "hard link by a link": (
        added(("way", tarfile.SYMTYPE, ".."), ("copy", tarfile.LNKTYPE, "way/../../outside/precious"), "copy"),
        ["copy"],
        [LINKS, "hard link"],
    ),
    "character device": (added(("null", tarfile.CHRTYPE)), [], ["device"]),
    "named pipe": (added(("pipe", tarfile.FIFOTYPE)), [], ["named pipe"]),
    "twice": (TWICE, ["log"], [CLASH]),
    "folder, then file": (added(("a", tarfile.DIRTYPE), "a"), ["a"], [CLASH]),
    "pax names": (pax_names, ["fine"], [STRAY]),
    "GNU long names": (added("../" * 50 + "precious", "n" * 3000), [], [STRAY, "name too long"]),
    "no UTF-8": (added("caf\udce9", "a\udcff/b"), [], [UNPRINTABLE]),
    "control characters": (added("a\x1b[2Jb", "a\nb", "a\u202eb", "a\x07"), [], [UNPRINTABLE]),
    "deep": (added("/".join("abcdefghij" * 4)), [], ["name too long"]),
}


def damaged_header(it: Hostile) -> None:
    it.header(tarfile.XHDTYPE, b"99 path=a\n")
    it.add("log")


def wrong_checksum(it: Hostile) -> None:
    it.add("log")
    it.raw.seek(0)
    it.raw.write(b"x")
    it.raw.seek(0, io.SEEK_END)


REFUSED: dict[str, tuple[Make, type[HostError], str]] = {
    "size beyond the end": (added("log", size=10 * MIB), DamagedArchive, "the archive is truncated"),
    "size of 4 EiB": (added("log", size=1 << 62), LogsTooLarge, "larger than 0.015625 GiB"),
    "negative size": (added("log", size=-512), DamagedArchive, "an entry of -512 bytes"),
    "sparse": (added(("core", tarfile.GNUTYPE_SPARSE), size=GIB), DamagedArchive, "an entry of type b'S'; expected a"),
    "unknown type": (added(("odd", b"Z")), DamagedArchive, "an entry of type b'Z'"),
    "large extended header": (
        lambda it: it.header(tarfile.XHDTYPE, b"", size=GIB),
        DamagedArchive,
        "a header of 1073741824 bytes; expected at most 65536",
    ),
    "damaged extended header": (damaged_header, DamagedArchive, "a damaged extended header"),
    "wrong checksum": (wrong_checksum, DamagedArchive, "bad checksum"),
    "gzip bomb": (added("log", content=bytes(64 * MIB)), LogsTooLarge, "max_log_gib"),
    "size by an extended header": (added("log", pax_headers={"size": str(GIB)}), LogsTooLarge, "max_log_gib"),
    "many entries": (
        added(*(f"log{number}" for number in range(1000)), content=b""),
        LogsTooLarge,
        "more than 200 files and folders; .* max_log_entries",
    ),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "outside"
    folder.mkdir(parents=True)
    (folder / "precious").write_text(PRECIOUS)
    return folder


@pytest.fixture
def folder(outside: Path) -> Path:
    return outside.parent / "h1_noderank0"


def assert_harmless(folder: Path, outside: Path) -> None:
    """Assert that no file was written elsewhere, that no link leads there, and that no other file is left."""
    assert (outside / "precious").read_text() == PRECIOUS
    assert (outside / "precious").stat().st_nlink == 1
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert {path.name for path in folder.parent.iterdir()} <= {"outside", folder.name}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        assert not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX | stat.S_IWOTH)


def made_by(make: Make, outside: Path) -> bytes:
    it = Hostile(outside)
    make(it)
    return it.packed()


@pytest.mark.parametrize("name", UNPACKED)
def test_harmful_entries_are_left_out_and_reported(name: str, folder: Path, outside: Path) -> None:
    make, files, reasons = UNPACKED[name]
    left_out = unpack(io.BytesIO(made_by(make, outside)), folder, LIMITS)
    assert_harmless(folder, outside)
    assert [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if len(path.name) < 200] == files
    assert sorted(line.split("(")[1].split(")")[0] for line in left_out) == sorted(reasons)
    assert all(line.isprintable() and line.isascii() for line in left_out)


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_or_too_large_archive_leaves_nothing(name: str, folder: Path, outside: Path) -> None:
    make, error, sentence = REFUSED[name]
    packed = made_by(make, outside)
    tracemalloc.start()
    try:
        with pytest.raises(error, match=sentence):
            unpack(io.BytesIO(packed), folder, LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    assert not folder.exists()
    assert_harmless(folder, outside)


def test_a_truncated_archive_leaves_nothing(folder: Path, outside: Path) -> None:
    packed = made_by(lambda it: it.add("log", content=os.urandom(100_000)), outside)
    for length in (0, 1, 10, 40, len(packed) // 2, len(packed) * 9 // 10):
        with pytest.raises(DamagedArchive, match="the logs cannot be unpacked"):
            unpack(io.BytesIO(packed[:length]), folder, LIMITS)
        assert_harmless(folder, outside)


@pytest.mark.slow
def test_any_changed_byte_is_harmless(folder: Path, outside: Path) -> None:
    it = Hostile(outside)
    TWICE(it)
    pax_names(it)
    raw = it.raw.getvalue() + bytes(1024)
    for at in range(0, len(raw), 7):
        changed = raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :]
        with suppress(HostError):
            unpack(io.BytesIO(gzip.compress(changed, 1)), folder, LIMITS)
        assert_harmless(folder, outside)


@pytest.mark.parametrize("mode", [0o7777, 0o000])
def test_modes_are_not_those_of_the_archive(mode: int, folder: Path, outside: Path) -> None:
    def make(it: Hostile) -> None:
        it.add("deep", tarfile.DIRTYPE, mode=mode)
        it.add("deep/log", mode=mode, uid=12345)

    assert unpack(io.BytesIO(made_by(make, outside)), folder, LIMITS) == ()
    assert_harmless(folder, outside)
    assert (folder / "deep" / "log").stat().st_mode & 0o777 == 0o644
    assert (folder / "deep" / "log").stat().st_uid == os.getuid()


def test_a_second_fetch_takes_the_place_of_the_first_and_follows_no_link(folder: Path, outside: Path) -> None:
    """The first may be of a version that kept links."""
    folder.mkdir()
    (folder / "log").symlink_to(outside / "precious")
    (folder / "deep").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    packed = made_by(added("log", "deep/precious"), outside)
    for _ in range(2):
        assert unpack(io.BytesIO(packed), folder, LIMITS) == ()
        assert_harmless(folder, outside)
        assert (folder / "log").read_bytes() == (folder / "deep" / "precious").read_bytes() == EVIL
    (outside.parent / "elsewhere").symlink_to(outside)
    unpack(io.BytesIO(packed), outside.parent / "elsewhere", LIMITS)
    assert not (outside.parent / "elsewhere").is_symlink()
    assert (outside / "precious").read_text() == PRECIOUS
