"""The directory of a run."""

from pathlib import Path

from pytest_flagperf.running.directory import RunDirectory


def test_a_run_never_gets_the_directory_of_another(tmp_path: Path) -> None:
    for name in ["run", *(f"run-{number}" for number in range(2, 1000))]:
        (tmp_path / name).mkdir()
    directory = RunDirectory(tmp_path / "run")
    directory.reserve()
    assert directory.path == tmp_path / "run-1000"
    assert directory.path.is_dir()
