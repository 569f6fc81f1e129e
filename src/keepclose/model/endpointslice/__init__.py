"""endpointslice: to be described."""
