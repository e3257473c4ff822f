"""The HTML pages of a run and of a comparison of runs."""
