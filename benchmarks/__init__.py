"""Benchmarks of the harness; run them with `python -m benchmarks` (docs/performance.md)."""
