"""How fast the harness is, and whether it sees what it should: run `python -m benchmarks` (docs/performance.md)."""
