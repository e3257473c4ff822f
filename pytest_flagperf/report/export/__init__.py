"""A run in the formats of other tools: JUnit, GitHub, Markdown, MLPerf."""
