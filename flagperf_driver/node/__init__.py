"""Code that runs on the hosts: the agent of a round, the sampler, device leases, and the facts for preflight."""
