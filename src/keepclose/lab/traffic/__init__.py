"""traffic: to be described."""
