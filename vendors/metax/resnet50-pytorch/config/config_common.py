"""What all shapes on C500 share: FlagPerf's "fp32", which METAX_USE_TF32 makes TF32: by name here."""

precision = "tf32"
num_workers = 8
