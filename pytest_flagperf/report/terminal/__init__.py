"""What the terminal shows while a run goes on and at its end."""
