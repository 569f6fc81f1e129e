"""The simulator: what an allocation does to traffic, for one region or for millions."""
