"""What the host draws: its management controller's figure (IPMI), else the processors' own counters (RAPL).

Where the processors are what is measured their counters come first: the controller is asked every two minutes, which
a training may not last, and the question takes time of a core.
"""

from __future__ import annotations

import os
import re
from typing import Callable, NamedTuple

from flagperf_driver.node import command
from flagperf_driver.node.sampling import schedule
from flagperf_driver.node.sampling.host import Rate
from flagperf_driver.node.sampling.notes import Notes
from flagperf_driver.node.sampling.schedule import Stop, Task

IPMI_EVERY_S = 120.0
"""A question keeps a core busy for tenths of a second in the kernel; the original asks as often."""
_IPMI_DEADLINE_S = 20.0
_IPMI_NODES = ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0")
_DCMI = re.compile(r"Instantaneous power reading:\s*([\d.]+)\s*Watts", re.IGNORECASE)
_WATTS = re.compile(r"\|\s*([\d.]+)\s*Watts\s*\|", re.IGNORECASE)


class Reading(NamedTuple):
    """W, and J since the first reading where the source counts them; None where there is no new figure."""

    watts: float | None = None
    joules: float | None = None


class NodePower:
    """One source for the whole round: IPMI where it answers, else RAPL; which, or why none, is noted."""

    def __init__(self, notes: Notes, root: str = "", processors_first: bool = False) -> None:
        self._notes = notes
        self._rapl = Rapl(root)
        self._ipmi = Ipmi(root)
        self._answered: float | None = None
        self._has_answered = False
        self.asks = self._ipmi.why_not is None and not (processors_first and self._rapl.why_not is None)
        if not self.asks:
            self._do_without(self._ipmi.why_not or "IPMI: not asked, the processors are what is measured")

    def run(self, stop: Stop) -> None:
        """Ask now and then; in a thread of its own, because an answer takes its time."""
        schedule.run([Task("power", IPMI_EVERY_S, self.ask)], stop)

    def ask(self, _: int = 0) -> None:
        if not self.asks:
            return
        try:
            self._answered = self._ipmi.read()
        except command.Ending:
            return
        except command.CommandError as error:
            if self._has_answered:
                self._notes.error(f"power: {error}")
            else:
                self._do_without(str(error))
            return
        self._has_answered = True
        self._notes.means["power"] = self._ipmi.means

    def fresh(self) -> Reading:
        """What was not given out yet."""
        if not self.asks:
            return Reading() if self._rapl.why_not else self._rapl.read()
        watts, self._answered = self._answered, None
        return Reading(watts)

    def _do_without(self, why: str) -> None:
        """For the whole round: a column holds figures of one source."""
        self.asks = False
        if self._rapl.why_not is None:
            self._notes.means["power"] = f"{self._rapl.means} ({why})"
        else:
            self._notes.missing(f"power: {why}; {self._rapl.why_not}")


class Rapl:
    """The sum of all packages and, where it is counted, of their memory; the counters wrap around."""

    means = "RAPL: processors, not the whole host"

    def __init__(self, root: str = "") -> None:
        self._folder = root + "/sys/class/powercap"
        self._zones: list[tuple[str, float]] = []
        self.why_not = self._find()
        self._before: list[float] | None = None
        self._whole = 0.0
        self._rate = Rate()

    def read(self) -> Reading:
        """W since the last call, none the first time; J since the first."""
        try:
            now = [_number(path) for path, _ in self._zones]
        except (OSError, ValueError):
            return Reading()
        if self._before is not None:
            for value, before, (_, most) in zip(now, self._before, self._zones):
                self._whole += value - before + (most if value < before else 0.0)
        self._before = now
        microwatts = self._rate.of((self._whole,))[0]
        return Reading(None if microwatts is None else microwatts / 1e6, self._whole / 1e6)

    def _find(self) -> str | None:
        """Why there is none, after looking."""
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.startswith("intel-rapl:"))  # noqa: PTH208
        except OSError:
            names = []
        for zone in (f"{self._folder}/{name}/" for name in names):
            try:
                label = _text(zone + "name")
                if not label.startswith(("package", "dram")):
                    continue  # of a package: its cores; of all: the board's, where it is said at all
                _number(zone + "energy_uj")
                self._zones.append((zone + "energy_uj", _number(zone + "max_energy_range_uj")))
                if label == "dram":
                    self.means = "RAPL: processors and memory, not the whole host"
            except PermissionError:
                return f"RAPL: {zone}energy_uj may not be read by this user (root may)"
            except (OSError, ValueError):
                continue
        return None if self._zones else f"RAPL: no counters in {self._folder}"


class Ipmi:
    """The management controller's reading, through ipmitool."""

    def __init__(self, root: str = "", ask: Callable[..., str] = command.run) -> None:
        self._ask = ask
        self._way: Callable[[], float] | None = None
        self.means = "IPMI"
        self.why_not: str | None = None
        if not any(os.path.exists(root + node) for node in _IPMI_NODES):  # noqa: PTH110
            self.why_not = "IPMI: none of {}".format(", ".join(_IPMI_NODES))
        elif not any(os.access(folder + "/ipmitool", os.X_OK) for folder in os.get_exec_path()):
            self.why_not = "IPMI: no ipmitool on this host's PATH"

    def read(self) -> float:
        """W now; raises CommandError."""
        if self._way is None:
            return self._find_way()
        return self._way()

    def _find_way(self) -> float:
        ways = (
            (self._dcmi, "ipmitool dcmi power reading: the whole host"),
            (self._sensors, "ipmitool sdr list: the greatest of the sensors in Watts"),
        )
        whys = []
        for way, means in ways:
            try:
                watts = way()
            except command.CommandError as error:
                whys.append(str(error))
                continue
            self._way, self.means = way, means
            return watts
        raise command.CommandError("; ".join(whys))

    def _dcmi(self) -> float:
        text = self._ask(["ipmitool", "dcmi", "power", "reading"], _IPMI_DEADLINE_S)
        found = _DCMI.search(text)
        if found is None or float(found.group(1)) <= 0:
            raise command.CommandError("ipmitool dcmi power reading: no instantaneous power in its answer")
        return float(found.group(1))

    def _sensors(self) -> float:
        found = _WATTS.findall(self._ask(["ipmitool", "sdr", "list"], _IPMI_DEADLINE_S))
        if not found:
            raise command.CommandError("ipmitool sdr list: no sensor in Watts")
        return max(map(float, found))


def _text(path: str) -> str:
    with open(path) as source:  # noqa: PTH123
        return source.read().strip()


def _number(path: str) -> float:
    return float(_text(path))
