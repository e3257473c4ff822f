"""The lab's format of ``flagperf export``: the throughputs as text for Prometheus."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flagperf.hooks import Exporter, hookimpl
from pytest_flagperf.results import StoredRun


@hookimpl
def flagperf_exporters() -> list[Exporter]:
    return [Exporter("prometheus", write)]


def write(runs: Sequence[StoredRun], folder: Path) -> None:
    lines = [line for run in runs for line in samples(run)]
    (folder / "flagperf.prom").write_text("\n".join(["# TYPE flagperf_p_core gauge", *lines, ""]), encoding="utf-8")


def samples(run: StoredRun) -> Iterator[str]:
    for case in run.cases:
        p_core = case.median("p_core")
        if p_core is not None:
            yield f'flagperf_p_core{{run="{run.directory.name}",case="{case.case}"}} {p_core}'
