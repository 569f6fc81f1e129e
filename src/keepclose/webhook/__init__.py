"""webhook: to be described."""
