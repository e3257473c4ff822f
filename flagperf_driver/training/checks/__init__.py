"""Checks of a training while it runs."""
