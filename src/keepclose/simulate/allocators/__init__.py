"""allocators: to be described."""
