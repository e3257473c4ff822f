"""Values of all shapes: compiled; the activations fit into the memory, so none are computed again."""

compile = True  # noqa: A001 - an option's name
