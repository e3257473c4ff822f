"""The documentation site: ``python -m docsite`` builds it from docs/ and the code, in English and Chinese."""
