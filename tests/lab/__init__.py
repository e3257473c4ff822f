"""A cluster on one Linux machine: hosts of namespaces that answer ssh, run docker, have GPUs, and break on request."""
