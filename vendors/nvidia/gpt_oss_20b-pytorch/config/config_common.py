"""Values of all shapes: compiled; experts are divided over the devices of a host."""

compile = True  # noqa: A001 - an option's name
parallel = {"shard": -1, "expert": 8}
