"""Build the frameworks' environments that tests use, if they are missing: python -m tests.environments.

.ci/run does it beside the linters: an environment is a download of a GB or more.
"""

import os
import sys
from pathlib import Path
from unittest import mock

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, Suite
from pytest_flagperf.engines.agents.environments import runtime_request
from pytest_flagperf.hosts.deploy import pack
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.runtime import runtimes
from pytest_flagperf.settings import Settings
from tests import own_places

REPO = Path(__file__).resolve().parent.parent


def build(catalog: Catalog, suite: Suite) -> str:
    """Return the Python of a suite's environment on the CPU, in the user's cache; it is built if it is missing."""
    case = Case.parse(f"{suite.name}:CPU:1:1:1")
    request = runtime_request(Settings(), catalog, case, catalog.vendor("cpu"), "venv")
    with mock.patch.dict(os.environ, FLAGPERF_CACHE=str(own_places.shared_cache())):
        venv = runtimes()["venv"]
        return venv.prepare(LocalHost(), request, lambda line: print(line, file=sys.stderr), pack({})).python


def main() -> None:
    catalog = Catalog.scan([REPO])
    for python in dict.fromkeys(build(catalog, suite) for suite in catalog.suites.values()):
        print(python)


if __name__ == "__main__":
    main()
