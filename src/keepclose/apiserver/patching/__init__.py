"""Patches of all four types, and who owns which field."""
