"""The order of CPUs as devices, and the CPUs near a device: complete and incomplete trees of /sys."""

from pathlib import Path

import pytest

from flagperf_driver.node.sampling import topology

# The core and the node of each CPU, as printed by `lscpu -e=CPU,CORE,NODE`.
ONE_SOCKET = {cpu: (cpu, 0) for cpu in range(4)}  # without SMT, or switched off
ADJACENT = {cpu: (cpu // 2, cpu // 4) for cpu in range(8)}  # two sockets; many virtual machines, POWER
SPLIT = {cpu: (cpu % 4, cpu % 4 // 2) for cpu in range(8)}  # two sockets; most servers
ALTERNATING = {cpu: (cpu % 4, cpu % 2) for cpu in range(8)}  # two sockets; some vendors' firmware
MIXED = {0: (0, 0), 1: (0, 0), 2: (1, 0), 3: (1, 0), 4: (2, 0), 5: (3, 0)}  # fast cores with SMT, slow ones without


def tree(root: Path, cpus: dict[int, tuple[int, int]], *, with_nodes: bool = True) -> str:
    for cpu, (core, _) in cpus.items():
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        threads = topology.as_list(other for other, (other_core, _) in cpus.items() if other_core == core)
        (folder / "thread_siblings_list").write_text(threads + "\n")
    for node in {node for _, node in cpus.values()} if with_nodes else ():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(topology.as_list(cpu for cpu, (_, its) in cpus.items() if its == node) + "\n")
    if with_nodes:
        (root / "devices/system/node/has_cpu").write_text("0\n")
    return str(root)


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (ONE_SOCKET, [0, 1, 2, 3]),
        (ADJACENT, [0, 2, 4, 6, 1, 3, 5, 7]),
        (SPLIT, [0, 1, 2, 3, 4, 5, 6, 7]),
        (ALTERNATING, [0, 2, 1, 3, 4, 6, 5, 7]),
        (MIXED, [0, 2, 4, 5, 1, 3]),
        (SPLIT, [5, 6, 7]),  # usable are only the second threads of some cores
        (SPLIT, [1, 2, 3, 5]),
        (ADJACENT, [1, 2, 4, 3]),  # the only usable thread of a core counts as a core
    ],
)
def test_devices_are_usable_cores_node_by_node(
    cpus: dict[int, tuple[int, int]], expected: list[int], tmp_path: Path
) -> None:
    assert topology.cpu_devices(sorted(expected, reverse=True), tree(tmp_path, cpus)) == expected


def test_without_a_known_topology_cpus_are_in_order(tmp_path: Path) -> None:
    assert topology.cpu_devices([7, 0, 3], str(tmp_path)) == [0, 3, 7]
    assert topology.cpu_devices([7, 0, 3, 2], tree(tmp_path, ADJACENT, with_nodes=False)) == [0, 2, 7, 3]


def local(root: Path, address: str, cpus: str) -> str:
    folder = root / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text(cpus + "\n")
    return str(root)


@pytest.mark.parametrize(
    ("pci", "address"),
    [
        *((pci, "0000:65:00.0") for pci in ("00000000:65:00.0", "0000:65:00.0", "65:00.0")),
        ("00010000:C1:00.0", "10000:c1:00.0"),
    ],
)
def test_the_cpus_of_a_devices_node_are_near(pci: str, address: str, tmp_path: Path) -> None:
    root = local(tmp_path, address, "2-3,6-7")
    assert topology.near(pci, range(8), root) == [2, 3, 6, 7]
    assert topology.near(pci, [0, 1, 2, 3], root) == [2, 3]


@pytest.mark.parametrize(
    ("pci", "cpus", "usable"),
    [
        ("0000:65:00.0", "0-7", range(8)),  # one node, or unknown to the kernel
        ("0000:65:00.0", "0-3", [4, 5]),  # bound to the other node
        ("0000:65:00.0", "0-3", [1, 2]),  # bound to a part of this node
        ("0000:65:00.0", "", range(8)),  # a node without CPUs
        ("0000:65:00.0", "nonsense", range(8)),
        ("0000:66:00.0", "0-3", range(8)),  # the device does not exist, as in some containers
        ("../../65:00.0", "0-3", range(8)),
        (None, "0-3", range(8)),
    ],
)
def test_no_cpu_is_near_if_all_are(pci: str | None, cpus: str, usable: range | list[int], tmp_path: Path) -> None:
    assert topology.near(pci, usable, local(tmp_path, "0000:65:00.0", cpus)) == []


def test_lists_round_trip_and_an_invalid_one_is_empty() -> None:
    for text in ("0", "0-3", "0-3,8", "0,2,4-5", "0-31,64-95"):
        assert topology.as_list(topology.parse_list(text + "\n")) == text
    assert [topology.parse_list(text) for text in ("", "\n", "0-", "-1", "a", "0;1")] == [[]] * 6
    assert topology.as_list([]) == ""
