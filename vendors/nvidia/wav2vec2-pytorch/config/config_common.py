"""Values of all shapes on A100. The original's precision is called fp32, but it was TF32."""

vendor = "nvidia"
precision = "tf32"
num_workers = 8
