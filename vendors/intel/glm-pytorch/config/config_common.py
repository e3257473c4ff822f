"""Values of all shapes: bf16 and compiled."""

precision = "bf16"
compile = True  # noqa: A001 - an option's name
