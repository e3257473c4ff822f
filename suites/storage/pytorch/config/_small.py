"""A small file: about ten seconds."""

read_mib = 256
sequential_blocks = [1024 * 1024, 8 * 1024 * 1024]
random_blocks = [4 * 1024]
window_s = 0.1
point_warmup_s = 0.1
point_least_s = 1.0
