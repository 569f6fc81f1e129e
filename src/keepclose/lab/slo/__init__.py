"""slo: to be described."""
