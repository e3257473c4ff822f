"""The bus bandwidth of an exchange, as nccl-tests define it, and FlagPerf's figures of the same times."""

from __future__ import annotations

from collections.abc import Mapping


def bus_bytes(operation: str, size: float, ranks: int) -> float:
    """Return the bytes that each link must carry at least, which the bus bandwidth divides by the time.

    ``size`` is the larger of a rank's input and output. The algorithm bandwidth is ``size`` / time.
    """
    if operation == "all_reduce":
        return size * 2 * (ranks - 1) / ranks
    if operation == "broadcast":
        return size
    return size * (ranks - 1) / ranks


def flagperf_all_reduce(bandwidth: float, ranks: int, ranks_of_host: int) -> Mapping[str, float]:
    """Return FlagPerf's figure of an all-reduce by its name, from the algorithm bandwidth.

    Within a host it is twice the bus bandwidth. Across hosts it is not doubled, and the number of ranks in its formula
    is that of one host, although all hosts take part: with one rank per host it would be 0, and is left out.
    """
    bus = bus_bytes("all_reduce", bandwidth, ranks_of_host)
    if ranks == ranks_of_host:
        return {"MPI_intraserver": 2 * bus}
    return {"MPI_interserver": bus} if ranks_of_host > 1 else {}


def flagperf_pair(bandwidth: float, source: int, target: int, ranks_of_host: int) -> Mapping[str, float]:
    """Return FlagPerf's figure of a pair by its name, if it is a pair that FlagPerf measures.

    It is doubled within a host, although only one rank sends.
    """
    if (source, target) == (0, ranks_of_host):
        return {"P2P_interserver": bandwidth}
    return {"P2P_intraserver": 2 * bandwidth} if (source, target) == (0, 1) else {}
