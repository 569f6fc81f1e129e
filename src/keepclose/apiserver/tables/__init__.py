"""The columns that kubectl prints."""
