"""Engines: how a plan becomes the directory of a round."""
