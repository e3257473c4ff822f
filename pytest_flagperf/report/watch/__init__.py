"""The live view of a run: its state from the live record, shown on a terminal or as plain lines."""
