"""Code shared by several suites, imported as ``common``; it is copied to the hosts with the suites."""
