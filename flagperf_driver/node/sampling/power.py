"""The host's power: from its management controller (IPMI), else from the processors' counters (RAPL).

If the benchmark runs on the processors, RAPL comes first: IPMI is read only every two minutes, which may be longer than
the training, and reading it costs CPU time.
"""

from __future__ import annotations

import os
import re
from typing import Callable, NamedTuple

from flagperf_driver.node import run_tool
from flagperf_driver.node.sampling import schedule
from flagperf_driver.node.sampling.host_counters import Rate
from flagperf_driver.node.sampling.notes import Notes
from flagperf_driver.node.sampling.schedule import Stop, Task

_IPMI_DEADLINE_S = 20.0
_IPMI_NODES = ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0")
_DCMI = re.compile(r"Instantaneous power reading:\s*([\d.]+)\s*Watts", re.IGNORECASE)
_WATTS = re.compile(r"\|\s*([\d.]+)\s*Watts\s*\|", re.IGNORECASE)


class Reading(NamedTuple):
    """Power in W, and energy in J since the first reading if the source counts it; None without a new value."""

    watts: float | None = None
    joules: float | None = None


class NodePower:
    """One power source for the whole round: IPMI if it works, else RAPL. The source, or why none works, is noted."""

    def __init__(self, notes: Notes, root: str = "", processors_first: bool = False) -> None:
        self._notes = notes
        self._rapl = Rapl(root)
        self._ipmi = Ipmi(root)
        self._watts: float | None = None
        self._has_answered = False
        self.asks = self._ipmi.problem is None and not (processors_first and self._rapl.problem is None)
        if not self.asks:
            self._give_up_ipmi(self._ipmi.problem or "IPMI: not used, because the benchmark runs on the processors")

    def run(self, stop: Stop) -> None:
        """Read IPMI at its interval; in a separate thread, because a reading takes time."""
        schedule.run([Task("power", schedule.IPMI_S, self.ask)], stop)

    def ask(self, _: int = 0) -> None:
        if not self.asks:
            return
        try:
            self._watts = self._ipmi.read()
        except run_tool.SamplerEnding:
            return
        except run_tool.CommandError as error:
            if self._has_answered:
                self._notes.error(f"power: {error}")
            else:
                self._give_up_ipmi(str(error))
            return
        self._has_answered = True
        self._notes.means["power"] = self._ipmi.means

    def fresh(self) -> Reading:
        """Return the reading since the last call, if there is a new one."""
        if not self.asks:
            return Reading() if self._rapl.problem else self._rapl.read()
        watts, self._watts = self._watts, None
        return Reading(watts)

    def _give_up_ipmi(self, reason: str) -> None:
        """Use RAPL for the whole round: a column contains the values of one source only."""
        self.asks = False
        if self._rapl.problem is None:
            self._notes.means["power"] = f"{self._rapl.means} ({reason})"
        else:
            self._notes.missing(f"power: {reason}; {self._rapl.problem}")


class Rapl:
    """The sum of all packages and, if it is counted, of their memory; the counters wrap around."""

    means = "RAPL: processors, not the whole host"

    def __init__(self, root: str = "") -> None:
        self._folder = root + "/sys/class/powercap"
        self._zones: list[tuple[str, float]] = []
        self.problem = self._find()
        self._before: list[float] | None = None
        self._total = 0.0
        self._rate = Rate()

    def read(self) -> Reading:
        """Return the mean power since the last call (None the first time) and the energy since the first call."""
        try:
            now = [_number(path) for path, _ in self._zones]
        except (OSError, ValueError):
            return Reading()
        if self._before is not None:
            for value, before, (_, largest) in zip(now, self._before, self._zones):
                self._total += value - before + (largest if value < before else 0.0)
        self._before = now
        microwatts = self._rate.of((self._total,))[0]
        return Reading(None if microwatts is None else microwatts / 1e6, self._total / 1e6)

    def _find(self) -> str | None:
        """Find the counters; return why none can be used."""
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.startswith("intel-rapl:"))  # noqa: PTH208
        except OSError:
            names = []
        for zone in (f"{self._folder}/{name}/" for name in names):
            try:
                label = _text(zone + "name")
                if not label.startswith(("package", "dram")):
                    continue  # other zones are parts of a package, or the whole board
                _number(zone + "energy_uj")
                self._zones.append((zone + "energy_uj", _number(zone + "max_energy_range_uj")))
                if label == "dram":
                    self.means = "RAPL: processors and memory, not the whole host"
            except PermissionError:
                return f"RAPL: {zone}energy_uj is readable by root only"
            except (OSError, ValueError):
                continue
        return None if self._zones else f"RAPL: no counters in {self._folder}"


class Ipmi:
    """The management controller's reading, through ipmitool."""

    def __init__(self, root: str = "", ask: Callable[..., str] = run_tool.run) -> None:
        self._ask = ask
        self._read_watts: Callable[[], float] | None = None
        self.means = "IPMI"
        self.problem: str | None = None
        if not any(os.path.exists(root + node) for node in _IPMI_NODES):  # noqa: PTH110
            self.problem = "IPMI: no device found ({})".format(", ".join(_IPMI_NODES))
        elif not any(os.access(folder + "/ipmitool", os.X_OK) for folder in os.get_exec_path()):
            self.problem = "IPMI: ipmitool not found on this host's PATH"

    def read(self) -> float:
        """Return the present power in W; raise CommandError on failure."""
        if self._read_watts is None:
            return self._find_command()
        return self._read_watts()

    def _find_command(self) -> float:
        commands = (
            (self._dcmi, "ipmitool dcmi power reading: the whole host"),
            (self._sensors, "ipmitool sdr list: the largest of the sensors in Watts"),
        )
        problems = []
        for read, means in commands:
            try:
                watts = read()
            except run_tool.CommandError as error:
                problems.append(str(error))
                continue
            self._read_watts, self.means = read, means
            return watts
        raise run_tool.CommandError("; ".join(problems))

    def _dcmi(self) -> float:
        text = self._ask(["ipmitool", "dcmi", "power", "reading"], _IPMI_DEADLINE_S)
        match = _DCMI.search(text)
        if match is None or float(match.group(1)) <= 0:
            raise run_tool.CommandError("ipmitool dcmi power reading: no instantaneous power in its output")
        return float(match.group(1))

    def _sensors(self) -> float:
        values = _WATTS.findall(self._ask(["ipmitool", "sdr", "list"], _IPMI_DEADLINE_S))
        if not values:
            raise run_tool.CommandError("ipmitool sdr list: no sensor in Watts")
        return max(map(float, values))


def _text(path: str) -> str:
    with open(path) as source:  # noqa: PTH123
        return source.read().strip()


def _number(path: str) -> float:
    return float(_text(path))
