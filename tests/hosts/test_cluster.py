"""Hosts run programs, copy files and open connections; a pool gives hosts to cases."""

import os
import sys
import threading
from pathlib import Path

import pytest

from flagperf_driver.node.folder import cache_root
from flagperf_driver.ports import PORTS, free_port
from pytest_flagperf.hosts import Host, HostError
from pytest_flagperf.hosts.host_pool import HostPool, run_on_each
from pytest_flagperf.hosts.local import LocalHost
from tests.helpers.processes import kill

HOST = LocalHost("here")
ECHO = """
import sys
for line in sys.stdin:
    print("noise, not JSON"); sys.stdout.write(line); sys.stdout.flush()
print('{"last": "word"}')
sys.stderr.write("a complaint")
"""


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_program_here_gets_the_environment_of_this_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("\N{GREEK SMALL LETTER ALPHA}", "b"):
        monkeypatch.setenv("X", value)
        assert HOST.run(["sh", "-c", "echo $X$Y"], timeout_s=20, env={"Y": "y"}).out == f"{value}y\n"


def test_a_channel_passes_objects_and_skips_other_lines() -> None:
    channel = HOST.open(python(ECHO))
    channel.send({"n": 1, "text": "two\nlines"})
    assert channel.receive(20) == {"n": 1, "text": "two\nlines"}
    channel.send({"big": "x" * 300_000})
    assert channel.receive(20) == {"big": "x" * 300_000}
    assert channel.close() == 0
    assert channel.error_output() == "a complaint"


def test_a_channel_distinguishes_the_end_from_silence() -> None:
    channel = HOST.open(python("import time; time.sleep(0.4)"))
    with pytest.raises(TimeoutError, match="here: no message in time"):
        channel.receive(0.05)
    assert channel.receive(20) is None
    channel.close()
    channel = HOST.open(python("pass"))
    assert channel.receive(20) is None
    channel._program.wait_for_end(20)
    with pytest.raises(HostError, match="here: the program no longer reads its input"):
        channel.send({})
    channel.close()


def test_closing_waits_for_no_child_and_ctrl_c_reaches_no_program() -> None:
    child = "subprocess.Popen(['sleep', '30'], start_new_session=True)"
    channel = HOST.open(python(f"import subprocess; print('{{\"child\": %d}}' % {child}.pid, flush=True)"))
    answer = channel.receive(20)
    assert answer is not None
    assert channel.close() == 0
    assert channel.receive(10) is None
    kill(answer["child"])
    channel = HOST.open(python("import os; print('{\"session\": %d}' % os.getsid(0), flush=True); input()"))
    answer = channel.receive(20)
    assert answer is not None
    assert answer["session"] == channel.pid != os.getsid(0)
    channel.close()


def test_no_file_of_the_harness_stays_open_in_a_program(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        look = "import os; print('{\"open\": %s}' % sorted(map(int, os.listdir('/proc/self/fd'))), flush=True)"
        channel = HOST.open(python(look))
        answer = channel.receive(20)
        channel.close()
        assert answer is not None
        assert file.fileno() not in answer["open"]


def test_an_error_of_the_harness_is_no_host_error() -> None:
    def work(host: Host) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_on_each([LocalHost("a"), LocalHost("b")], work)


def test_a_step_takes_as_long_as_the_slowest_host_and_every_error_is_reported() -> None:
    hosts = [LocalHost(f"h{number}") for number in range(20)]
    together = threading.Barrier(20, timeout=60)

    def work(host: Host) -> str:
        together.wait()  # all at once, not one after the other
        if host.name in ("h3", "h7"):
            raise HostError(f"{host.name}: broken")
        return host.name

    results = run_on_each(hosts, work)
    assert list(results) == hosts
    assert [str(result) for result in results.values() if isinstance(result, HostError)] == ["h3: broken", "h7: broken"]


def test_a_pool_gives_its_first_hosts_and_names_excluded_ones() -> None:
    a, b = LocalHost("a"), LocalHost("b")
    pool = HostPool((a, b))
    pool.exclude(a, "the link is cut")
    pool.exclude(a, "a later reason")
    assert pool.take(1) == (b,)
    with pytest.raises(HostError, match="needs 2 hosts, 1 available: b; a is left out: the link is c"):
        pool.take(2)
    pool.include(a)
    assert pool.take(2) == (a, b)
    many = HostPool(tuple(LocalHost(f"h{number}") for number in range(30)))
    for host in many.hosts[:10]:
        many.exclude(host, "off")
    with pytest.raises(HostError, match=r"20 available: h10, .*, h17 and 12 more; h0 .* off; 2 more are left out$"):
        many.take(30)


def test_a_free_port_is_outside_the_range_of_outgoing_connections_and_not_always_the_same() -> None:
    ports = {free_port() for _ in range(20)}
    assert ports <= set(PORTS)
    assert len(ports) > 1


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLAGPERF_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == tmp_path / ".cache" / "pytest-flagperf"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "pytest-flagperf"
    monkeypatch.setenv("FLAGPERF_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
