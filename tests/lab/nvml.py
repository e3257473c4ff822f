"""A host's GPUs: the state that its libnvidia-ml.so.1 reads, changed by tests while programs look."""

from __future__ import annotations

import ctypes
import math
import mmap
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.built import built

if TYPE_CHECKING:
    from tests.lab.lab import LabHost

FOLDERS = ("usr/lib", "usr/lib64")  # where a loader looks by itself
MAX_DEVICES = MAX_PROCESSES = 16
TEXTS = ("name", "uuid", "serial", "bus", "vbios")
GIB = 1 << 30
A100 = "NVIDIA A100-SXM4-80GB"
GPU_IS_LOST = 15
NOT_SUPPORTED = -1
NUMBERS = (
    "error",
    "temperature", "utilization", "memory_utilization",
    "power_mw", "wave_mw", "wave_ms", "energy_uj", "since_ns", "power_limit_mw",
    "usual_power_limit_mw",
    "memory_total", "memory_used", "memory_reserved",
    "sm_clock", "memory_clock", "sm_clock_max", "memory_clock_max", "clock_reasons",
    "ecc_enabled", "ecc_corrected", "ecc_uncorrected", "ecc_corrected_total", "ecc_uncorrected_total",
    "rows_corrected", "rows_uncorrected", "rows_pending", "rows_failed",
    "pcie_tx_kb", "pcie_rx_kb", "pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max",
    "pcie_replays",
    "links", "links_down", "link_errors",
    "mig", "persistence", "fan", "performance_state", "major", "minor", "num_processes",
)  # fmt: skip
IDLE = {
    "temperature": 31, "power_mw": 62_000, "power_limit_mw": 400_000, "usual_power_limit_mw": 400_000,
    "memory_total": 80 * GIB, "memory_reserved": GIB // 2,
    "sm_clock": 210, "memory_clock": 1593, "sm_clock_max": 1410, "memory_clock_max": 1593, "clock_reasons": 1,
    "ecc_enabled": 1, "pcie_generation": 4, "pcie_generation_max": 4, "pcie_width": 16, "pcie_width_max": 16,
    "persistence": 1, "fan": NOT_SUPPORTED, "performance_state": 8, "major": 8, "minor": 0,
}  # fmt: skip


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_int64), ("memory", ctypes.c_int64)]


class _Device(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char * (96 if name in ("name", "uuid") else 32)) for name in TEXTS),
        *((name, ctypes.c_int64) for name in NUMBERS),
        ("processes", _Process * MAX_PROCESSES),
    ]


class _State(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint64),
        ("error", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("cuda", ctypes.c_int64),
        ("driver", ctypes.c_char * 96),
        ("devices", _Device * MAX_DEVICES),
    ]


class Gpu:
    """One device. What a set changes, a reader sees all at once."""

    def __init__(self, state: _State, index: int) -> None:
        self.index = index
        self._state = state
        self._device: _Device = state.devices[index]

    def set(self, texts: Mapping[str, str] | None = None, **numbers: int) -> None:
        """Any of NUMBERS, in NVML's units, where -1 is what this device cannot tell, and of TEXTS.

        `error=GPU_IS_LOST` breaks it; `wave_mw` and `wave_ms` let the power swing as a sine around `power_mw`.
        """
        unknown = sorted(set(numbers) - set(NUMBERS))
        if unknown:
            raise TypeError(f"a GPU has no {unknown}; it has {NUMBERS}")
        with _writing(self._state):
            if numbers.keys() & {"power_mw", "wave_mw", "wave_ms"}:
                now = time.monotonic_ns()
                self._device.energy_uj, self._device.since_ns = round(self._energy_uj(now)), now
            for key, text in (texts or {}).items():
                setattr(self._device, key, text.encode())
            for key, number in numbers.items():
                setattr(self._device, key, number)

    def get(self, name: str) -> int:
        return int(getattr(self._device, name))

    def processes(self, *running: tuple[int, int]) -> None:
        """Say who computes on it: (pid, bytes) of each."""
        with _writing(self._state):
            for number, (pid, memory) in enumerate(running):
                self._device.processes[number].pid = pid
                self._device.processes[number].memory = memory
            self._device.num_processes = len(running)
            self._device.memory_used = sum(memory for _, memory in running)

    def _energy_uj(self, now: int) -> float:
        one = self._device
        energy = one.energy_uj + one.power_mw * (now - one.since_ns) / 1e6
        if one.wave_ms > 0:

            def angle(ns: int) -> float:
                return 2 * math.pi * math.fmod(ns / 1e6 / one.wave_ms, 1.0)

            energy += one.wave_mw * one.wave_ms / (2 * math.pi) * (math.cos(angle(one.since_ns)) - math.cos(angle(now)))
        return float(energy)


@contextmanager
def _writing(state: _State) -> Iterator[None]:
    """While it lasts, readers wait: its version is odd."""
    state.version += 1
    yield
    state.version += 1


class Nvml:
    """The GPUs of one host; none until they are put in."""

    def __init__(self, host: LabHost) -> None:
        self._host = host
        self._state: _State | None = None

    def on(self, count: int = 8, name: str = A100) -> None:
        """Put that many idle GPUs in, with their driver."""
        file = self.state_file
        library = built("nvml", "-Wl,-soname,libnvidia-ml.so.1")
        with file.open("w+b") as stream:
            stream.truncate(ctypes.sizeof(_State))
            self._state = _State.from_buffer(mmap.mmap(stream.fileno(), 0))
        self._state.count, self._state.cuda, self._state.driver = count, 12040, b"550.54.15"
        for index in range(count):
            self._put_in(index, name)
        for folder in FOLDERS:
            if (self._host.root / folder).is_dir():
                (self._host.root / folder / "libnvidia-ml.so.1").write_bytes(library.read_bytes())
        self._host.wear()
        self.boot()

    def boot(self) -> None:
        """What the driver does when its host starts: a node in /dev for each."""
        if self._state is None:
            return
        nodes = [(f"/dev/nvidia{gpu.index}", gpu.index) for gpu in self] + [("/dev/nvidiactl", 255)]
        make = "; ".join(f"mknod -m 666 {node} c 195 {minor}" for node, minor in nodes)
        self._host.run(["sh", "-c", f"rm -f /dev/nvidia*; {make}"])

    def off(self) -> None:
        """Take GPUs and driver out."""
        for folder in FOLDERS:
            (self._host.root / folder / "libnvidia-ml.so.1").unlink(missing_ok=True)
        self._host.run(["sh", "-c", "rm -f /dev/nvidia*"])
        self.state_file.unlink(missing_ok=True)
        self._state = None

    def container_toolkit(self) -> None:
        """What lets Docker know the devices, from its next start on; a container gets nothing of them."""
        hook = self._host.root / "usr/bin/nvidia-container-runtime-hook"
        hook.write_text("#!/bin/sh\n")
        hook.chmod(0o755)
        self._host.wear()

    def error(self, code: int) -> None:
        state = self._on()
        with _writing(state):
            state.error = code

    def driver(self, version: str) -> None:
        """Another one from now on."""
        state = self._on()
        with _writing(state):
            state.driver = version.encode()

    @property
    def state_file(self) -> Path:
        """On the machine; the host sees it as /run/lab/state."""
        return self._host.disk.folder / "state/state"

    def __getitem__(self, index: int) -> Gpu:
        if not 0 <= index < self._on().count:
            raise IndexError(f"{self._host.name} has no GPU {index}")
        return Gpu(self._on(), index)

    def __iter__(self) -> Iterator[Gpu]:
        return (self[index] for index in range(self._on().count))

    def _on(self) -> _State:
        if self._state is None:
            raise RuntimeError(f"{self._host.name} has no GPUs: nvml.on() puts them in")
        return self._state

    def _put_in(self, index: int, name: str) -> None:
        who = uuid.uuid5(uuid.NAMESPACE_OID, f"{self._host.address} {index}")
        state = self._on()
        device = state.devices[index]
        device.bus = f"00000000:{0x10 + index:02X}:00.0".encode()
        device.since_ns = time.monotonic_ns()
        for key, value in IDLE.items():
            setattr(device, key, value)
        texts = {"uuid": f"GPU-{who}", "serial": f"{who.int % 10**13:013d}", "vbios": "92.00.45.00.05"}
        Gpu(state, index).set({"name": name, **texts})
