"""Stored results: results.json and the verdicts of a run, results.csv, pandas tables, published results."""
