"""To the target with the suite's batch: one step of four sequences on each device. Not yet run."""

compile = True  # noqa: A001 - an option's name
gradient_accumulation_steps = 1
