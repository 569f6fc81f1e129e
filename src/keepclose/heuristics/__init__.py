"""heuristics: to be described."""
