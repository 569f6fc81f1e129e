"""counters: to be described."""
