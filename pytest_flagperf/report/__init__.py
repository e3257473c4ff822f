"""Reports of stored results: terminal tables, HTML pages, JUnit and other export formats."""
