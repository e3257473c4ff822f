"""Exchanges between ranks; flagperf_driver/measuring/defaults.py has all other keys."""

operations = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
sizes = [
    1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864, 268435456, 1073741824,
]  # bytes of each rank: the larger of input and output  # fmt: skip
pair_bytes = 67108864  # sent between two ranks
pair_s = 0.3  # how long each pair is measured
pair_ranks = 16  # most ranks whose pairs are measured: the first ones of each host
point_warmup_s = 0.1
