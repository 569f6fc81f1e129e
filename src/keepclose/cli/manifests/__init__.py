"""manifests: to be described."""
