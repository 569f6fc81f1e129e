"""What Services are given and share: cluster IPs and node ports, each held by one at a time."""
