"""Eight cards, to the target."""

num_workers = 8
