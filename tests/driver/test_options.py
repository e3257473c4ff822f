"""The options of a framework are read without the framework."""

import subprocess
import sys

import pytest

from flagperf_driver import options


@pytest.mark.parametrize(("name", "imported"), [("options", False), ("pytorch.steps", True)])
def test_options_are_read_without_the_frameworks_code(name: str, imported: bool) -> None:
    code = (
        f"import sys\nsys.modules['torch'] = None\ntry:\n    import flagperf_driver.{name}\n"
        "except ImportError: print('needs torch')\n"
        "from flagperf_driver import options\nprint(options.values('pytorch')['compile_mode'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*["needs torch"] * imported, "default"]


def test_a_framework_without_own_options_has_those_of_every_framework() -> None:
    common, pytorch = options.values("numpy"), options.values("pytorch")
    assert common.items() <= pytorch.items()
    assert pytorch.keys() - common.keys() >= {"compile", "compile_mode", "channels_last"}
    assert "MUTABLE" not in pytorch
