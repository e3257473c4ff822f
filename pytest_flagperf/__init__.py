"""The harness: runs where pytest runs, and never imports a framework."""
