"""The lab's vendors: the folder vendors/ of this package."""

from pathlib import Path

from pytest_flagperf.hooks import hookimpl


@hookimpl
def flagperf_roots() -> list[Path]:
    return [Path(__file__).parent]
