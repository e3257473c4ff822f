"""NVML: quantities, facts and processes of devices."""
