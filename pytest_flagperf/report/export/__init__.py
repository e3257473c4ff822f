"""Export runs to the formats of other tools: JUnit, GitHub, Markdown."""
