"""The suite's values; FlagPerf has the same on BI-V100 at 1x8."""
