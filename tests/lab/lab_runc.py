"""Run runc, leaving out what this machine may not give: CAP_SYS_RESOURCE, and limits above the machine's own."""

import json
import os
import resource
import sys
from pathlib import Path

RUNC = "{RUNC}"
UNLIMITED = 2**64 - 1


def within_limits(process: dict) -> None:  # type: ignore[type-arg]
    """Change a process of a bundle so that the kernel lets it start."""
    for names in (process.get("capabilities") or {}).values():
        names[:] = [name for name in names if name != "CAP_SYS_RESOURCE"]
    for limit in process.get("rlimits") or []:
        number = getattr(resource, limit["type"], None)
        if number is not None:
            hard = resource.getrlimit(number)[1]
            limit["hard"] = min(limit["hard"], UNLIMITED if hard < 0 else hard)
            limit["soft"] = min(limit["soft"], limit["hard"])


def main(arguments: list[str]) -> None:
    if "create" in arguments or "run" in arguments:
        bundle = arguments[arguments.index("--bundle") + 1] if "--bundle" in arguments else "."
        file = Path(bundle) / "config.json"
        config = json.loads(file.read_text())
        within_limits(config["process"])
        file.write_text(json.dumps(config))
    if "exec" in arguments and "--process" in arguments:
        file = Path(arguments[arguments.index("--process") + 1])
        process = json.loads(file.read_text())
        within_limits(process)
        file.write_text(json.dumps(process))
    os.execv(RUNC, ["runc", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
