"""Requests in, answers out: paths, options, reading, writing, watching, and the HTTP server."""
