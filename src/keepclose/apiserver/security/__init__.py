"""Who calls, over which connection, and what they may do."""
