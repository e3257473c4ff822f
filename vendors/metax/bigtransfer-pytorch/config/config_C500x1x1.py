"""FlagPerf's values on C500 at 1x1."""

max_steps = 80000
