"""csv: to be described."""
