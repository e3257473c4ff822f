"""The suite's values; FlagPerf has the same on C500 at 2x8."""
