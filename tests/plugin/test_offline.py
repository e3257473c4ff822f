"""flagperf wheels fills a folder, and make setup creates the harness's environment from it without a package index."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_flagperf.commands import main
from pytest_flagperf.packages import OF_ONE_PART
from pytest_flagperf.problems import Problems
from pytest_flagperf_wheels.command import _installed, _matches
from tests.runtime.test_runtime import write_wheel

from .conftest import Toy

REPO = Path(__file__).resolve().parents[2]
VERSION = "{}.{}".format(*sys.version_info)


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("bert and not pytorch", False),
        ("(glm or BERT) and torch", True),
        ("not cpm", True),
    ],
)
def test_an_expression_selects_suites_by_words(expression: str, matches: bool) -> None:
    assert _matches(expression, "bert:pytorch") is matches


@pytest.mark.parametrize("expression", ["(bert", "bert glm", "bert (glm)", "and", "__import__('os')"])
def test_an_invalid_expression_is_an_error(expression: str) -> None:
    with pytest.raises(Problems, match=r"-k .*: expected words with and, or, not"):
        _matches(expression, "bert:pytorch")


@pytest.mark.parametrize(
    ("content", "why"),
    [("frame\n".encode("utf-16"), "not UTF-8"), (b"\x7fELF\xff", "not UTF-8"), (b"frame==\n", "txt:1: frame==: inv")],
)
def test_a_list_of_packages_that_pip_freeze_did_not_print_is_an_error(content: bytes, why: str, tmp_path: Path) -> None:
    (file := tmp_path / "installed.txt").write_bytes(content)
    with pytest.raises(Problems, match=rf"--installed={file}: expected what pip freeze printed: .*{why}"):
        _installed(file)


class Checkout:
    """A tree of toy suites that is a checkout, on a machine whose package index does not answer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("pytest_flagperf", "flagperf_driver", "packages"):
            (root / name).symlink_to(REPO / name)
        (root / "tools").mkdir()
        for name in ("Makefile", "pyproject.toml", "conftest.py", "tools/set_up.py"):
            shutil.copy(REPO / name, root / name)

    def run(self, *argv: str) -> tuple[int, str]:
        environment = {key: its for key, its in os.environ.items() if not key.startswith(("PIP_", "UV_", "PYTEST_"))}
        environment |= {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
            "PIP_RETRIES": "0",
            "PIP_COMPILE": os.environ["PIP_COMPILE"],
        }
        done = subprocess.run(argv, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def make(self, *words: str) -> tuple[int, str]:
        return self.run("make", "setup", f"PYTHON={sys.executable}", *words)


@pytest.mark.slow
def test_a_folder_of_wheels_is_enough_for_the_harness(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    checkout = Checkout(toy.root)
    for model, lines in {"alpha": "h11==0.16.0\nidna\n", "beta": "idna\n"}.items():
        (toy.root / "suites" / model / "plain" / "requirements.txt").write_text(lines)
    wheels = toy.root / "wheels"
    assert main(["wheels", str(wheels), "-k", "alpha", f"--python-version={VERSION}"]) == 0
    out = capsys.readouterr().out
    names = {path.name.partition("-")[0].replace("_", "-") for path in wheels.glob("*.whl")}
    assert {"pytest", "orjson", "psutil", "pip", "h11"} <= names
    assert not {"idna", *OF_ONE_PART} & names, "what all suites need is the framework's own"
    assert " h11 0.16.0 (alpha:plain)" in out
    assert "the other machine's Python must have idna" in out
    size = sum(path.stat().st_size for path in wheels.glob("*.whl")) / 1e6
    assert f"{len(names)} wheels, {size:.1f} MB" in out

    # Control: without the folder, and with a folder that lacks packages, the message says what to bring.
    advice = f"flagperf wheels wheels --python-version={VERSION} --platform="
    code, output = checkout.make()
    assert code != 0
    assert "set-up: cannot install what the harness needs from the package index" in output
    assert advice in output
    assert "Retrying" not in output
    (toy.root / "lacking").mkdir()
    code, output = checkout.make("WHEELS=lacking")
    assert code != 0
    assert "lacking: no pip-*.whl in this folder" in output
    assert advice in output

    (toy.root / "flagperf.toml").write_text('wheels = "wheels"\n')
    code, output = checkout.make()
    assert code == 0, output
    code, output = checkout.run(".venv/bin/pytest", "suites/alpha", "--runtime=host", "--plan")
    assert code == 0, output
    assert "2 cases selected" in output
    code, output = checkout.run(".venv/bin/flagperf", "list")
    assert code == 0, output
    assert "alpha:plain" in output
    code, output = checkout.run("make", "setup-dev", f"PYTHON={sys.executable}")
    assert "made from wheels, which lack the tools of this project's tests" in output


@pytest.mark.slow
def test_a_package_that_does_not_fit_what_is_installed_is_not_kept(
    toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    links = toy.root / "links"
    write_wheel(links, "frame", "2.0")
    write_wheel(links, "plug", "1.0", "Requires-Dist: frame>=2\n")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{links} {os.environ.get('PIP_FIND_LINKS', '')}")
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    (toy.root / "suites" / "alpha" / "plain" / "requirements.txt").write_text("frame\nplug\n")
    (toy.root / "suites" / "beta" / "plain" / "requirements.txt").write_text("frame\n")
    for version, kept in (("2.1", True), ("1.9+here", False)):
        (toy.root / "installed.txt").write_text(f"# pip freeze\nframe=={version}\nother @ file:///other.whl\n")
        argv = ["wheels", str(toy.root / version), f"--python-version={VERSION}", "--installed", "installed.txt"]
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert bool(list((toy.root / version).glob("plug-*"))) is kept
        assert ("plug 1.0: needs frame>=2, the other machine has 1.9+here (alpha:plain)" in out) is not kept
