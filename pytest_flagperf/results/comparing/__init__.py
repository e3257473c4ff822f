"""Comparisons of a case with other runs: the noise of its metrics, stored runs side by side, accepted baselines."""
