"""Values of all shapes: the ranks keep a context on each device, whose memory vLLM must leave free."""

engine_options = ["--gpu-memory-utilization=0.85"]
