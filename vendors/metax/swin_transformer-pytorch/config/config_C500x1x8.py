"""The suite's values; FlagPerf has the same on C500 at 1x8."""
