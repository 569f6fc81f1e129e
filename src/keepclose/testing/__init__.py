"""Builders of objects for tests, ours and those of people who build on keepclose."""
