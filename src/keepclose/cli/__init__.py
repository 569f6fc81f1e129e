"""Commands: they read, call the core and render; they decide nothing."""
