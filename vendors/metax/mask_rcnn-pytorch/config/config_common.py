"""Values of all shapes on C500. FlagPerf's precision is called fp32, but METAX_USE_TF32 makes it TF32."""

precision = "tf32"
num_workers = 8
