"""Commands that read or write suites, vendors and their generated READMEs."""
