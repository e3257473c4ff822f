"""Run a program that the kernel ends with the process that started it, also if that one is killed.

The arguments are the process that started it, the program and its own arguments.
"""

from __future__ import annotations

import os
import sys

from flagperf_driver.node.processes import die_with

if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - a list of words, which no shell reads
