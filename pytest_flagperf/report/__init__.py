"""Stored results for people to look at: console table, pictures, pieces of HTML, JUnit properties."""
