"""printing: to be described."""
