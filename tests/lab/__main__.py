"""A lab to play with: `python -m tests.lab [number of hosts]`, or `make lab`. It stays until Ctrl-C."""

import argparse
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

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
        for host in hosts if given.gpus else ():
            host.nvml.on(given.gpus)
        settings = lab.folder / "flagperf.toml"
        settings.write_text(lab.ssh_settings().toml())
        config = lab.ssh_config()
        print(f"{len(hosts)} host{'s' * (len(hosts) > 1)}, each a machine of its own:")
        for host in hosts:
            print(f"  {host.name}  {host.address}  ssh -F {config} {host.name}")
        print(f"\n{settings}:\n\n{settings.read_text()}")
        print(f"In another terminal:\n\n  cp {settings} .")
        print(f"  .venv/bin/python -m pytest suites --nodes={min(len(hosts), 2)}x1")
        if given.gpus:
            print("  .venv/bin/python -m pytest suites --vendor=nvidia --scale=small --preflight")
        print()
        print("Ctrl-C removes all of it.", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print()
    return None


if __name__ == "__main__":
    sys.exit(main())
