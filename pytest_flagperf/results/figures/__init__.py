"""The figures of a round: their units and better directions, how they are written, and how much they vary."""
