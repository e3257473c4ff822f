"""Matrix products; flagperf_driver/measuring/defaults.py has all other keys."""

precisions: list[str] = []  # empty: those whose peak vendor.toml declares; fp32 is always measured
sizes = [2048, 4096, 8192, 16384]  # rows and columns of both matrices
sustained_s = 30.0  # how long matmul_sustained computes without a pause; 0: not at all; FlagPerf's cases take 360
sustained_size = 8192
