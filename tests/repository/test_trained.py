"""A suite is checked and trained again when something that its training or its checks use has changed."""

import shutil
from pathlib import Path

import pytest

from pytest_flagperf.catalog import Catalog
from pytest_flagperf.plan import make
from tests import trained
from tests.helpers.trees import write

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


def test_a_suite_has_changed_when_its_target_or_what_it_uses_changes_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("suites/glm", "suites/common", "vendors/cpu"):
        shutil.copytree(REPO / folder, tmp_path / folder)
    shutil.copytree(REPO / "flagperf_driver", tmp_path / "driver")
    monkeypatch.setattr(make, "_DRIVER", tmp_path / "driver")
    monkeypatch.setattr(trained, "FILE", write(tmp_path, "tests/trained.toml", ""))

    def changed(name: str, line: str = "# changed") -> bool:
        """Return whether the suite has changed when the file has this line, too, and record it as it is now."""
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / name).open("a") as opened:
            opened.write(f"\n{line}\n")
        catalog = Catalog.scan([tmp_path])
        found = trained.changed(catalog, catalog.trainings.values(), trained.recorded())
        trained.record(catalog, catalog.trainings.values())
        return [suite.name for suite in found] == ["glm:pytorch"]

    assert changed("suites/glm/README.md"), "it was never trained"
    assert [name for name, line in USED.items() if not changed(name, line or "# changed")] == []
    assert [name for name in UNUSED if changed(name)] == []
    toml = tmp_path / "suites/glm/pytorch/suite.toml"
    toml.write_text(toml.read_text().replace("[scales.small]\ntarget = 0.", "[scales.small]\ntarget = 0.1"))
    assert changed(UNUSED[0]), "its target"
