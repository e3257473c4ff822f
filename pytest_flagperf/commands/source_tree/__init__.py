"""Commands that read or write suites and vendors, and the READMEs that are made of them."""
