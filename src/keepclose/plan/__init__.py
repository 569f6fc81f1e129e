"""What would happen to a cluster's Services, told by the pure core alone."""
