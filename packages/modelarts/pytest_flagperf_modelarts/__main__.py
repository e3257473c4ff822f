"""Stop the newest job on ModelArts, or print a run's results in the form of ais-bench.

stop ends the newest job with the job_name of [engines.modelarts] in flagperf.toml and prints its id and its state.
results prints throughput_list, accuracy_list and train_result_info for each case of a run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_flagperf.commands import common, run_guarded
from pytest_flagperf.hosts import HostError
from pytest_flagperf.problems import Problems
from pytest_flagperf.settings import SiteTable, find_root, read_settings

from . import NAME, ais_bench

STOP, RESULTS = "stop", "results"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flagperf-modelarts", description=__doc__)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    stop = actions.add_parser(STOP, help="stop the newest job with the job_name of the settings")
    stop.set_defaults(run=_stop)
    results = actions.add_parser(RESULTS, help="print a run's results in the form of ais-bench")
    common.add_run(results)
    results.set_defaults(run=_print_results)
    arguments = parser.parse_args(argv)
    return run_guarded(arguments.run, arguments)


def _print_results(arguments: argparse.Namespace) -> int:
    for case in common.load_run(arguments.run).cases:
        result = ais_bench.result_of(case)
        print("\n".join([case.case, *result.lines(), result.info_text()]))
    return 0


def _stop(_: argparse.Namespace) -> int:
    # Imported only for this action, since they load slowly.
    from .account import open_cloud
    from .config import read_config
    from .jobs import stop_newest

    root = find_root(Path.cwd()) or Path.cwd()
    tables = read_settings({}, root).engine_tables
    config = read_config(tables.get(NAME, SiteTable({}, root / "flagperf.toml")))
    try:
        print(stop_newest(open_cloud(config).jobs, config.job_name))
    except HostError as error:
        raise Problems([str(error)]) from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
