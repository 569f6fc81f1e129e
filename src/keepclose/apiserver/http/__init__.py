"""http: to be described."""
