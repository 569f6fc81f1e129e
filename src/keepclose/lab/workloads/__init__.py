"""workloads: to be described."""
