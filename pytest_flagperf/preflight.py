"""What must hold on a host before the first rank starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from .catalog import DataItem
from .cluster import Host, HostError
from .cluster.deploy import module_argv, stage

# Checksums of a data set of terabytes take their time.
_TIMEOUT_S = 4 * 3600.0


def verify_data(host: Host, data_dir: str, manifest: Sequence[DataItem]) -> list[str]:
    """What of a data directory is missing on the host or not as the manifest says, one sentence each."""
    entries = [{key: value for key, value in asdict(item).items() if value is not None} for item in manifest]
    argv = module_argv(host.python, stage(host, {}), "flagperf_driver.node.manifest")
    asked = json.dumps({"data_dir": data_dir, "entries": entries})
    done = host.run(argv, timeout_s=_TIMEOUT_S, stdin=asked.encode())
    if done.code != 0:
        raise HostError(f"{host.name}: the data could not be checked: {done.err.strip()[-500:]}")
    return [str(problem) for problem in json.loads(done.out)["problems"]]
