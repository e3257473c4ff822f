"""Values of all shapes: compiled; the cheap part of the activations is computed again in the backward pass."""

compile = True  # noqa: A001 - an option's name
checkpoint_activations = "selective"
