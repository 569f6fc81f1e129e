"""kubelet: to be described."""
