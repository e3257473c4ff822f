"""NVML: the quantities, facts and processes of devices, by a library call each."""
