"""A lab to play with: `python -m tests.lab [number of hosts]`, or `make lab`. It stays until Ctrl-C."""

import argparse
import shlex
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tests.lab.lab import Lab
from tests.lab.needs import missing


def main() -> str | None:
    parser = argparse.ArgumentParser(prog="make lab", description=__doc__)
    parser.add_argument("hosts", nargs="?", type=int, default=4, help="how many (default: 4)")
    parser.add_argument("--docker", action="store_true", help="with a docker engine on each")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="with N pretended GPUs in each")
    given = parser.parse_args()
    if problems := missing():
        return "\n".join(["no lab on this machine:", *problems])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Lab() as lab:
        hosts = lab.hosts(given.hosts)
        if given.docker:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda host: host.docker(), hosts))
        for host in hosts:
            if given.gpus:
                host.nvml.on(given.gpus)
            print(f"{host.name}: {shlex.join(host.ssh())}")
        print(f"\nTheir flagperf.toml:\n\n{lab.ssh_settings().toml()}\nCtrl-C removes all of it.", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
    return None


if __name__ == "__main__":
    sys.exit(main())
