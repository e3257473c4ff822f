"""The hosts of a run: the table [cluster], the original's cluster_conf.py, --cluster."""

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.hosts.cluster import Address, ClusterConfig, ClusterError, parse_host, read_cluster, split_hosts
from pytest_flagperf.original import read_cluster_conf
from pytest_flagperf.problems import Problems
from tests.helpers.trees import write

ORIGINAL = """\
'''Cluster configs'''
# Hosts to run the benchmark. Each item is an IP address or a hostname.
HOSTS = ["10.1.2.2", "10.1.2.3"]
SSH_PORT = "2222"
HOSTS_PORTS = ["2222"]
MASTER_PORT = "29501"
MASTER_PROT = "1"
"""


def problems(table: dict[str, Any], file: Path) -> list[str]:
    with pytest.raises(ClusterError) as caught:
        read_cluster(table, file)
    return [problem.removeprefix(f"{file}: ") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.2", Address("10.0.0.2", "10.0.0.2")),
        ("bench@h3:2222", Address("h3", "h3", "bench", 2222)),
        ("a@example.com@h3", Address("h3", "h3", "a@example.com")),
        ("[::1]:2200", Address("0-1", "::1", None, 2200)),
        ("[fe80::1%eth0]", Address("fe80-1-eth0", "fe80::1%eth0")),
        ("fe80::1", Address("fe80-1", "fe80::1")),
        ("first=root@10.0.0.2", Address("first", "10.0.0.2", "root")),
    ],
)
def test_hosts_are_written_in_the_usual_forms(text: str, address: Address) -> None:
    assert parse_host(text) == address


@pytest.mark.parametrize(
    "text", ["", "h3:", "h3:0", "h3:70000", "h3:x", "@h3", "-oProxyCommand=x", "a b", "h;ls", "a@b c", "=h3", "x y=h3"]
)
def test_invalid_hosts_are_refused(text: str) -> None:
    assert parse_host(text) is None
    with pytest.raises(ClusterError, match="expected host, user@host, host:port"):
        ClusterConfig(hosts=(text,)).addresses()


def test_a_whole_table_comes_with_its_paths_absolute(tmp_path: Path) -> None:
    key = write(tmp_path, "keys/id", "")
    table = {
        "hosts": ["h1", "b@h2:23"], "user": "bench", "port": 22, "key": "keys/id", "known_hosts": "known",
        "gateway": "gw:2222", "python": "/opt/python/bin/python3.11", "max_log_gib": 0.5, "max_log_entries": 7,
        "max_whole_hosts": 8,
    }  # fmt: skip
    file = tmp_path / "flagperf.toml"
    conf = read_cluster(table, file)
    assert conf == ClusterConfig(
        ("h1", "b@h2:23"), "bench", 22, str(key), str(tmp_path / "known"), "gw:2222", None,
        "/opt/python/bin/python3.11", str(file), max_log_gib=0.5, max_log_entries=7, max_whole_hosts=8,
    )  # fmt: skip
    assert conf.addresses() == (Address("h1", "h1"), Address("h2", "h2", "b", 23))


def test_all_problems_of_a_table_are_reported_at_once(tmp_path: Path) -> None:
    table = {
        "hosts": ["h1", "h1", "bench@h1", "h 2"], "usr": "me", "port": 0, "key": "none", "gateway": "a b",
        "python": "python3; ls", "user": "-l x",
    }  # fmt: skip
    reported = problems(table, tmp_path / "flagperf.toml")
    assert reported[0] == (
        "cluster.usr: unknown setting; did you mean user?; allowed are hosts, user, port, key, known_hosts, gateway, "
        "reach, python, max_log_gib, max_log_entries, max_whole_hosts"
    )
    assert [re.split(": |; expected", problem)[0] for problem in reported[1:]] == [
        "cluster.port is 0", "cluster.python is 'python3; ls'", "cluster.user is a string", "cluster.key",
        "cluster.hosts", "cluster.hosts", "cluster.hosts", "cluster.gateway",
    ]  # fmt: skip
    assert "'h1': is listed twice; host names must be unique" in reported[5]
    assert "'bench@h1': has the same name as 'h1'" in reported[6]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_log_gib", 0, "expected a number of GiB larger than 0"),
        ("max_log_gib", "4", "expected a number of GiB larger than 0"),
        ("max_log_gib", float("nan"), "expected a number of GiB larger than 0"),
        ("max_log_entries", 1.5, "expected a whole number larger than 0"),
        ("max_log_entries", True, "expected a whole number larger than 0"),
    ],
)
def test_limits_of_logs_are_positive_numbers(name: str, value: object, expected: str, tmp_path: Path) -> None:
    (problem,) = problems({name: value}, tmp_path / "f")
    assert problem.endswith(expected)


def test_a_command_reaches_hosts_in_place_of_ssh(tmp_path: Path) -> None:
    table: dict[str, object] = {"hosts": ["pod-0"], "reach": "kubectl exec -i {host} --"}
    assert read_cluster(table, tmp_path / "f").reach == table["reach"]
    reported = problems({**table, "hosts": ["me@pod-0:22"], "port": 22}, tmp_path / "f")
    assert [problem.partition("cluster.")[2] for problem in reported] == [
        "port has no effect with reach: remove it",
        "hosts: 'me@pod-0:22': expected no user and no port with reach",
    ]
    for wrong in ("", "kubectl exec", "{host}", "kubectl 'exec {host}"):
        (problem,) = problems({**table, "reach": wrong}, tmp_path / "f")
        assert problem.endswith("expected the words of a command, then {host}")


@pytest.mark.parametrize("hosts", [None, [], "h1", [1]])
def test_hosts_are_a_list(hosts: object, tmp_path: Path) -> None:
    assert problems({"hosts": hosts}, tmp_path / "f")[0].endswith("expected a list of at least one host, each a string")


def test_the_originals_file_and_hosts_with_commas_are_read(tmp_path: Path) -> None:
    assert split_hosts("a, b@c:3,,d") == ("a", "b@c:3", "d")
    file = write(tmp_path, "cluster_conf.py", ORIGINAL)
    conf = read_cluster_conf(file)
    assert (conf.hosts, conf.port, conf.source) == (("10.1.2.2", "10.1.2.3"), 2222, str(file))
    notes = [sentence.removeprefix(f"{file}:") for sentence in conf.without_effect]
    assert [sentence.split(":")[0] for sentence in notes] == ["6", "5", "7"]
    assert notes[0].startswith("6: MASTER_PORT has no effect: each round uses a free port")
    assert notes[2].endswith("did you mean MASTER_PORT?")


def test_problems_of_the_originals_file_are_reported_with_its_names(tmp_path: Path) -> None:
    file = write(tmp_path, "cluster_conf.py", 'HOSTS = ["a", "a"]\nSSH_PORT = "none"\n')
    with pytest.raises(Problems) as caught:
        read_cluster_conf(file)
    assert [problem.removeprefix(f"{file}: ") for problem in caught.value.problems] == [
        "SSH_PORT is 'none'; expected a whole number from 1 to 65535",
        "HOSTS: 'a': is listed twice; host names must be unique: remove one, or rename it with name=host",
    ]
    with pytest.raises(Problems, match=r"cluster_conf\.py:1: HOSTS: expected a list of strings; got a string"):
        read_cluster_conf(write(tmp_path, "cluster_conf.py", 'HOSTS = "a"\n'))
    with pytest.raises(Problems, match="HOSTS is missing; write HOSTS"):
        read_cluster_conf(write(tmp_path, "cluster_conf.py", "SSH_PORT = '22'\n"))
