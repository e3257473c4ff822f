"""The names of the files and folders of a run, of its cases and of its rounds."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flagperf_driver.layout import CASE, DEVICE_SERIES, HOST_SERIES, LOAD_SERIES, MILESTONE_TIMES, MONITORS, SYSTEM
from flagperf_driver.node.folder import SUMMARY
from pytest_flagperf.case import folder, without_repeat

# -- of a run ------------------------------------------------------------------------------------------------

RESULTS, TABLE, PAGE, JUNIT = "results.json", "results.csv", "report.html", "junit.xml"
INDEX = "index.html"
"""The page of a folder of runs."""
REPORTS = (PAGE, JUNIT, RESULTS, TABLE)
"""The reports of a run."""
SUMS = "SHA256SUMS"
"""The digests of results.json and of all files that it is made from."""
OPTIONS = "options.json"
"""The options of the run, for --resume."""
LEFT_OUT = "left_out.json"
"""The hosts and devices that the controller of a parallel run left out."""
LIVE, LIVE_SUFFIX = "live", ".jsonl"
"""The folder with what each process of the run does at the moment, for ``flagperf watch``."""
CONTROLLER = "controller"
"""The name of pytest's own process; workers of pytest-xdist have names such as gw0."""

WEIGHTS = "weights"
"""The folder with the checkpoints of trainings whose weights other cases of the run read."""


def live_file(process: str) -> str:
    return f"{process}{LIVE_SUFFIX}"


def is_live_file(name: str) -> bool:
    return re.fullmatch(rf"[A-Za-z0-9_-]+{re.escape(LIVE_SUFFIX)}", name) is not None


# -- of a case -----------------------------------------------------------------------------------------------

VERDICTS = "verdicts"
"""The folder with a file of verdicts for each test."""
ONE_CARD_FIGURE = "one_card.json"
"""The throughput of one card, to compute the speed-up of the case."""


def baseline_file(case: str) -> str:
    """The name of a case's baseline in the folder of the baselines, the same for any number of rounds."""
    return f"{folder(without_repeat(case))}.json"


FETCHED = "fetched_logs"
"""The folder with logs that were fetched after the run: no figure of the run comes from them."""


# -- of a round ----------------------------------------------------------------------------------------------

PLAN, RECORD, OUTCOME = "plan.json", "round.json", "outcome.json"
ONE_CARD, ALL_CARDS = "one_card", "all_cards"

_NODERANK = "_noderank"
_ROUND = re.compile(r"round(\d+)")
_REPEATABLE = re.compile(rf"round\d+|(turn\d+_)?{ONE_CARD}|turn\d+_{ALL_CARDS}")


def verdicts_file(test: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', test)}.json"


def round_folder(number: int) -> str:
    return f"round{number}"


def round_number(folder: str) -> int | None:
    """Return the number of a round by its folder's name; None for other folders, such as a failed round's."""
    match = _ROUND.fullmatch(folder)
    return int(match[1]) if match else None


def turn_folder(turn: int, cards: str) -> str:
    """The folder of a short round that measures a speed-up again, with ONE_CARD or ALL_CARDS."""
    return f"turn{turn}_{cards}"


def is_repeatable(folder: str) -> bool:
    """Return True if --resume may continue the round in a folder of this name."""
    return _REPEATABLE.fullmatch(folder) is not None


def failed_folder(number: int | str, folder: str) -> str:
    """The name for a failed round that makes room for another try; ``*`` as the number gives a pattern."""
    return f"failed{number}-{folder}"


def is_failed(folder: str) -> bool:
    return folder.startswith("failed")


def last_try(folder: str) -> str:
    """Return the folder of the round's last try by the folder of any of its tries."""
    return folder.partition("-")[2] if is_failed(folder) else folder


def host_folder(host: str, noderank: int | str) -> str:
    """The folder of a host's logs in a round's directory; ``*`` for both gives a pattern."""
    return f"{host}{_NODERANK}{noderank}"


def host_of(folder: str) -> str:
    """Return the host's name by the name of its folder."""
    return folder.rpartition(_NODERANK)[0]


def noderank_of(folder: str) -> int:
    """Return the host's number by the name of its folder; 0 where the name has no number."""
    number = folder.rpartition(_NODERANK)[2]
    return int(number) if number.isdecimal() else 0


# -- what the files contain -----------------------------------------------------------------------------------------

FILES: Mapping[str, Mapping[str, str]] = {
    "A folder of runs: reports/": {
        INDEX: "the newest run of each case with its trend, and all runs; flagperf report --all writes it",
    },
    "A run: run<timestamp>/": {
        PAGE: "the report: one page that opens without a network",
        JUNIT: "the tests, for CI systems",
        RESULTS: "the outcomes and verdicts of all cases, without curves; other commands read it",
        TABLE: "one row for each round",
        SUMS: "the SHA-256 of results.json and of all files that it is made from, as sha256sum writes them",
        OPTIONS: "the options of the run, without secrets, for --resume",
        f"{WEIGHTS}/": "the checkpoints of trainings that other cases of the run serve",
        LEFT_OUT: "the hosts and devices that were left out, and why",
        f"{LIVE}/{CONTROLLER}{LIVE_SUFFIX}, {LIVE}/gw<X>{LIVE_SUFFIX}": (
            "what happens while the run runs, written by pytest and its workers; flagperf watch reads it"
        ),
    },
    "A case: run<timestamp>/<case>/": {
        f"{VERDICTS}/<test>.json": "the verdicts of one test",
        ONE_CARD_FIGURE: "the throughput of one card, with which the speed-up is computed",
    },
    f"Logs that flagperf show --fetch-logs fetched: run<timestamp>/<case>/{FETCHED}/": {
        "round<X>/<host>_noderank<X>/": "the logs and samples that the host kept",
    },
    "A round: run<timestamp>/<case>/round<X>/": {
        PLAN: "everything that determined the round: shape, config with the source of each value, fingerprint",
        CASE: "the settings that each rank read",
        RECORD: "the start and the end of the round, its hosts and devices",
        OUTCOME: "the measurements of the round",
    },
    "Logs and samples of a host: run<timestamp>/<case>/round<X>/<host>_noderank<X>/": {
        "rank<X>.out.log": "the log of a rank: all that it printed, and its records",
        "rank<X>.exit.json": "how a rank ended",
        "start_<framework>_task.log": "the log of the agent",
        MILESTONE_TIMES: "the times at which the agent saw the ranks' milestones",
        SUMMARY: "in rounds on many hosts: what the host's logs and samples say, which stay on the host",
        SYSTEM: "the machine: devices, driver, CPU, memory, kernel",
        MONITORS: "the sampler's report: sources, gaps, events, and what could not be sampled, with the reason",
        HOST_SERIES: "CPU, memory, network, disk and power of the host, with exact times",
        LOAD_SERIES: "the counters of the kernel for busy cores",
        DEVICE_SERIES: "power, temperature, utilization, memory and clocks of the devices, with exact times",
        "cpu_monitor.log, mem_monitor.log, pwr_monitor.log, <vendor>_monitor.log": (
            "the same samples in FlagPerf's format and intervals"
        ),
    },
}
"""The folders of a run, each with the meaning of its files; ``<X>`` is a number from 0, of rounds from 1."""
