"""Hosts of a Slurm job: jobs, and connections through srun."""
