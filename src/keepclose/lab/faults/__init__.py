"""faults: to be described."""
