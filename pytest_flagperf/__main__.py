"""Run ``flagperf`` as ``python -m pytest_flagperf``."""

import sys

from pytest_flagperf.commands import main

if __name__ == "__main__":
    sys.exit(main())
