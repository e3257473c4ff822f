"""Reads of files; flagperf_driver/measuring/defaults.py has all other keys."""

read_mib = 4096  # of the data folder, or of a temporary file, for each rank
sequential_blocks = [64 * 1024, 1024 * 1024, 8 * 1024 * 1024]  # bytes of a read
random_blocks = [4 * 1024, 1024 * 1024]
window_s = 0.2  # Linux reads ahead in bursts, which a shorter window would show as two speeds
point_least_s = 3.0
sample_bytes = 128 * 1024  # of a random read that counts as a sample, about the size of a picture in JPEG
