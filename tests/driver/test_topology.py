"""Which CPUs are cards, and which are near a device: trees of /sys as machines have them, and as they lack them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flagperf_driver.node.sampling import topology

# By CPU its core, and by CPU its node: as `lscpu -e=CPU,CORE,NODE` shows them.
ONE_SOCKET = {cpu: (cpu, 0) for cpu in range(4)}  # without SMT, or switched off
ADJACENT = {cpu: (cpu // 2, cpu // 4) for cpu in range(8)}  # two sockets; many virtual machines, POWER
SPLIT = {cpu: (cpu % 4, cpu % 4 // 2) for cpu in range(8)}  # two sockets; most servers
ALTERNATING = {cpu: (cpu % 4, cpu % 2) for cpu in range(8)}  # two sockets; some makers' firmware
MIXED = {0: (0, 0), 1: (0, 0), 2: (1, 0), 3: (1, 0), 4: (2, 0), 5: (3, 0)}  # fast cores with SMT, slow ones without


def tree(root: Path, cpus: dict[int, tuple[int, int]], *, with_nodes: bool = True) -> str:
    """The files of /sys, as far as they are read."""
    for cpu, (core, _) in cpus.items():
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        threads = topology.as_list(other for other, (its, _) in cpus.items() if its == core)
        (folder / "thread_siblings_list").write_text(threads + "\n")
    for node in {node for _, node in cpus.values()} if with_nodes else ():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(topology.as_list(cpu for cpu, (_, its) in cpus.items() if its == node) + "\n")
    if with_nodes:
        (root / "devices/system/node/has_cpu").write_text("0\n")
    return str(root)


@pytest.mark.parametrize(
    ("cpus", "wanted"),
    [
        (ONE_SOCKET, [0, 1, 2, 3]),
        (ADJACENT, [0, 2, 4, 6, 1, 3, 5, 7]),
        (SPLIT, [0, 1, 2, 3, 4, 5, 6, 7]),
        (ALTERNATING, [0, 2, 1, 3, 4, 6, 5, 7]),
        (MIXED, [0, 2, 4, 5, 1, 3]),
    ],
    ids=["one socket", "adjacent", "split", "alternating", "mixed"],
)
def test_cards_are_whole_cores_first_node_by_node(
    cpus: dict[int, tuple[int, int]], wanted: list[int], tmp_path: Path
) -> None:
    assert topology.cards(reversed(wanted), tree(tmp_path, cpus)) == wanted


@pytest.mark.parametrize(
    ("usable", "wanted"),
    [
        ([5, 6, 7], [5, 6, 7]),  # the second threads, of cores of which the first is somebody else's
        ([1, 2, 3, 5], [1, 2, 3, 5]),
        ([3, 7], [3, 7]),
    ],
)
def test_of_a_container_only_what_it_may_use(usable: list[int], wanted: list[int], tmp_path: Path) -> None:
    assert topology.cards(usable, tree(tmp_path, SPLIT)) == wanted


def test_a_thread_whose_core_is_shared_out_to_others_is_a_core_here(tmp_path: Path) -> None:
    assert topology.cards([1, 2, 3, 4], tree(tmp_path, ADJACENT)) == [1, 2, 4, 3]


def test_without_any_word_of_the_kernel_cpus_are_cards_by_their_numbers(tmp_path: Path) -> None:
    assert topology.cards([7, 0, 3], str(tmp_path)) == [0, 3, 7]
    assert topology.cards([7, 0, 3, 2], tree(tmp_path, ADJACENT, with_nodes=False)) == [0, 2, 7, 3]


def test_this_machine_has_each_of_its_cpus_once() -> None:
    usable = os.sched_getaffinity(0)
    assert sorted(topology.cards(usable)) == sorted(usable)


def local(root: Path, address: str, cpus: str) -> str:
    folder = root / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text(cpus + "\n")
    return str(root)


@pytest.mark.parametrize("pci", ["00000000:65:00.0", "0000:65:00.0", "65:00.0"])
def test_near_a_device_are_its_nodes_cpus(pci: str, tmp_path: Path) -> None:
    root = local(tmp_path, "0000:65:00.0", "2-3,6-7")
    assert topology.near(pci, range(8), root) == [2, 3, 6, 7]
    assert topology.near(pci, [0, 1, 2, 3], root) == [2, 3]


def test_letters_of_a_bus_and_large_domains_are_as_the_kernel_writes_them(tmp_path: Path) -> None:
    assert topology.near("00010000:C1:00.0", range(4), local(tmp_path, "10000:c1:00.0", "0")) == [0]


@pytest.mark.parametrize(
    ("pci", "cpus", "usable"),
    [
        ("0000:65:00.0", "0-7", range(8)),  # one node, or the kernel does not know
        ("0000:65:00.0", "0-3", [4, 5]),  # somebody bound us to the other node
        ("0000:65:00.0", "0-3", [1, 2]),  # or to a part of this one
        ("0000:65:00.0", "", range(8)),  # a node of memory only
        ("0000:65:00.0", "nonsense", range(8)),
        ("0000:66:00.0", "0-3", range(8)),  # no such device, as in some containers
        ("../../65:00.0", "0-3", range(8)),
        (None, "0-3", range(8)),
    ],
)
def test_where_nothing_is_known_or_gained_there_is_none(
    pci: str | None, cpus: str, usable: range | list[int], tmp_path: Path
) -> None:
    assert topology.near(pci, usable, local(tmp_path, "0000:65:00.0", cpus)) == []


@pytest.mark.parametrize("text", ["0", "0-3", "0-3,8", "0,2,4-5", "0-31,64-95"])
def test_lists_are_read_as_they_are_written(text: str) -> None:
    assert topology.as_list(topology.listed(text + "\n")) == text


def test_no_list_is_no_cpu() -> None:
    assert [topology.listed(text) for text in ("", "\n", "0-", "-1", "a", "0;1")] == [[]] * 6
    assert topology.as_list([]) == ""
