"""As the base."""
