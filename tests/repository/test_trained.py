"""A suite is checked and trained again when something that its training or its checks use has changed."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_flagperf.catalog import Catalog
from pytest_flagperf.plan import make
from tests import trained
from tests.suites import conftest as of_suites

REPO = Path(__file__).resolve().parents[2]
USED = {
    "suites/glm/pytorch/run_pretraining.py": "",
    "suites/glm/pytorch/config/_small.py": "learning_rate = 0.5",
    "suites/glm/pytorch/requirements.txt": "numpy",
    "suites/common/steps.py": "",
    "suites/common/language/more.py": "",
    "suites/glm/pytorch/tests/glm.py": "",
    "suites/common/language/tests/more.py": "",
    "vendors/cpu/glm-pytorch/extern/trainer_adapter.py": "",
    "driver/training/loop.py": "",
}
UNUSED = (
    "suites/glm/README.md",
    "suites/common/images/tests/more.py",
    "suites/common/images/steps.py",
    "driver/node/x.py",
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("suites/glm", "suites/common", "vendors/cpu"):
        shutil.copytree(REPO / folder, tmp_path / folder)
    shutil.copytree(REPO / "flagperf_driver", tmp_path / "driver")
    monkeypatch.setattr(make, "_DRIVER", tmp_path / "driver")
    return tmp_path


def changed(tree: Path, hashes: dict[str, str]) -> list[str]:
    catalog = Catalog.scan([tree])
    return [suite.name for suite in trained.changed(catalog, catalog.trainings.values(), hashes)]


def change(file: Path, line: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as opened:
        opened.write(f"\n{line}\n")


def hashes_of(tree: Path) -> dict[str, str]:
    catalog = Catalog.scan([tree])
    return {suite.name: trained.hash_of(catalog, suite) for suite in catalog.trainings.values()}


def test_a_suite_that_never_trained_runs_and_records_are_of_suites(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(tree, {}) == ["glm:pytorch"]
    monkeypatch.setattr(trained, "FILE", tree / "trained.toml")
    catalog = Catalog.scan([tree])
    trained.record(catalog, catalog.trainings.values())
    assert changed(tree, trained.recorded()) == []
    assert trained.recorded().keys() <= {suite.name for suite in Catalog.scan([REPO]).suites.values()}


def test_a_suite_is_selected_when_its_target_or_what_it_uses_changes_and_only_then(tree: Path) -> None:
    for name, line in USED.items():
        before = hashes_of(tree)
        change(tree / name, line or "# changed")
        assert changed(tree, before) == ["glm:pytorch"], name
    before, toml = hashes_of(tree), tree / "suites/glm/pytorch/suite.toml"
    head, small, tail = toml.read_text().partition("[scales.small]\ntarget = 0.")
    assert small
    toml.write_text(f"{head}{small}1{tail}")
    assert changed(tree, before) == ["glm:pytorch"]
    before = hashes_of(tree)
    for name in UNUSED:
        change(tree / name, "# changed")
    assert changed(tree, before) == []


def test_only_slow_tests_of_an_unchanged_suite_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog.scan([REPO])
    changed, unchanged = (catalog.suite(model, "pytorch") for model in ("vit", "cpm"))
    hashes = {suite.name: trained.hash_of(catalog, suite) for suite in catalog.suites.values()}
    monkeypatch.setattr(trained, "recorded", lambda: {**hashes, changed.name: "of another time"})

    def is_skipped(suite: object, *, slow: bool = True, everything: bool = False) -> bool:
        added: list[object] = []
        item = SimpleNamespace(
            path=REPO / "tests/suites/test_x.py", callspec=SimpleNamespace(params={"suite": suite}),
            get_closest_marker=lambda _: slow or None, add_marker=added.append,
        )  # fmt: skip
        of_suites.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _: everything), [item])  # type: ignore[arg-type, list-item]
        return bool(added)

    assert not is_skipped(changed)
    assert is_skipped(unchanged)
    assert is_skipped(unchanged.path)
    assert not is_skipped(unchanged, slow=False)
    assert not is_skipped(unchanged, everything=True)
    assert not is_skipped(7), "a test of many suites runs if any of them changed"
    monkeypatch.setattr(trained, "recorded", lambda: hashes)
    assert is_skipped(7)
