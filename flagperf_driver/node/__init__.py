"""A host's side: the agent that supervises one round's ranks, the sampler and the check of the data."""
