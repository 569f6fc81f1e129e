"""reconcile: to be described."""
