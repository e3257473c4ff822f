"""The same tests for every framework's trainer, on a small model with the same data and initial weights."""
