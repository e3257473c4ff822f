"""Values of all shapes: compiled."""

compile = True  # noqa: A001 - an option's name
