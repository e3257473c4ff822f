"""What looking at all hosts costs, cold (connections to be made, code to be brought) and again, on hosts of the lab.

python -m benchmarks.preflight [hosts]    # as root
"""

from __future__ import annotations

import sys
import time

from pytest_flagperf.cluster.conf import ClusterConf
from pytest_flagperf.cluster.deploy import pack
from pytest_flagperf.cluster.fleet import each
from pytest_flagperf.cluster.ssh import ssh_hosts
from pytest_flagperf.preflight import Wants, inspect, sentences
from tests.lab.lab import Lab


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    with Lab() as lab:
        told = lab.ssh_settings(lab.hosts(count))
        hosts = ssh_hosts(ClusterConf(tuple(told.hosts), told.user, told.port, told.key, told.known_hosts))
        wants = Wants(pack({}), nnodes=2)
        try:
            for word in ("cold", "again"):
                began = time.perf_counter()
                findings = inspect(hosts, wants)
                print(f"{word}: {count} hosts in {time.perf_counter() - began:.2f} s")
            print("\n".join(sentences(findings)) or "all well")
        finally:
            each(hosts, lambda host: host.close())


if __name__ == "__main__":
    main()
