"""Run a program that the kernel ends with the process that started it, also if that one is killed.

The arguments are the program and its own arguments.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - a list of words, which no shell reads
