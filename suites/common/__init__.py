"""What several suites share. A suite imports it as ``common``; it travels to the hosts beside the suites."""
