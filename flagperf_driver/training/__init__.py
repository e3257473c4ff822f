"""The training loop of all frameworks: it needs Python alone, and drives a framework's ``Trainer``."""
