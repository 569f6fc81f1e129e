"""watch: to be described."""
