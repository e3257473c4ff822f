"""Values of all shapes: bf16."""

precision = "bf16"
