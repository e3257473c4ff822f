"""The memory of a device; flagperf_driver/measuring/defaults.py has all other keys."""

sizes = [
    1024 * 1024,
    16 * 1024 * 1024,
    256 * 1024 * 1024,
    1024 * 1024 * 1024,
    4 * 1024 * 1024 * 1024,
]  # bytes of an array; the figures are those of the largest one
# Allocate at most so many bytes; None: all of a device, of a host what it has free; 0: do not measure the capacity.
capacity_most: int | None = None
