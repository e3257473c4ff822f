"""Checks of a training in PyTorch while it runs."""
