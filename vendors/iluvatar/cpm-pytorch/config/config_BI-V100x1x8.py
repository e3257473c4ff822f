# FlagPerf's values are the suite's.
