"""The types of the API: what fields objects have, how lists merge, and how clients learn of it."""
