"""The job's side of a round in the cloud: on each instance, a boot file runs the agent with orders from a file.

A copy of this folder is in the code folder of each job, as ``flagperf_job``.
"""
