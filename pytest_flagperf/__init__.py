"""The harness: runs where pytest runs, and never imports a framework."""

__version__ = "0.1.0"
