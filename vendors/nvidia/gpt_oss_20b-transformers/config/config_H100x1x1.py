"""The suite's own choices. Not yet run."""
