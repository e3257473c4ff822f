"""Stop the newest job on ModelArts, or print a run's results in the form of ais-bench.

stop ends the newest job with the job_name of [modelarts] in flagperf.toml and prints its id and its state. results
prints throughput_list, accuracy_list and train_result_info for each case of a run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_flagperf.commands import common
from pytest_flagperf.commands.source_tree import tree
from pytest_flagperf.engines.modelarts.config import read_config
from pytest_flagperf.hosts import HostError
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.export import ais_bench
from pytest_flagperf.settings import read_settings

STOP, RESULTS = "stop", "results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=(STOP, RESULTS), help="what to do")
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help=f"{common.RUN}, for {RESULTS}")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == RESULTS:
        return _print_results(arguments.run)
    if arguments.run is not None:
        raise Problems([f"{STOP} takes no run: it stops the newest job with the job_name of [modelarts]"])
    return _stop()


def _print_results(directory: Path | None) -> int:
    if directory is None:
        raise Problems([f"{RESULTS} requires RUN, {common.RUN}"])
    for case in common.load_run(directory).cases:
        result = ais_bench.result_of(case)
        print("\n".join([case.case, *result.lines(), result.info_text()]))
    return 0


def _stop() -> int:
    # Imported only for this action, since they load slowly.
    from pytest_flagperf.engines.modelarts.account import open_cloud
    from pytest_flagperf.engines.modelarts.jobs import stop_newest

    config = read_config(read_settings({}, tree.root()).modelarts_table)
    try:
        print(stop_newest(open_cloud(config).jobs, config.job_name))
    except HostError as error:
        raise Problems([str(error)]) from error
    return 0
