"""Values of all shapes on A100."""

vendor = "nvidia"
