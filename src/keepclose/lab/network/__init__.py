"""network: to be described."""
