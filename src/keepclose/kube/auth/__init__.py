"""auth: to be described."""
