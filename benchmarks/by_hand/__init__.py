"""A training step written by hand in each framework, and the same step in the training loop.

Each module has ``make_model``, ``bare_step`` and ``trainer``; it is imported in the environment of its framework.
"""
