"""Small matrices, for a core of a CPU: about ten seconds."""

precisions = ["fp32", "bf16", "fp64", "int8"]
sizes = [512, 1024]
sustained_s = 2.0
sustained_size = 1024
point_warmup_s = 0.1
point_least_s = 0.4
point_most_s = 1.0
