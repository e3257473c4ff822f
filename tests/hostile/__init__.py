"""Campaigns of hostile input, each kept as a test."""
