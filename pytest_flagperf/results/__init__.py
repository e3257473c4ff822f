"""What a round measured, how it is judged, and where it is kept; knows only files."""
