"""Values of all shapes on H100 and H200: bf16, compiled."""

precision = "bf16"
compile = True  # noqa: A001 - an option's name
