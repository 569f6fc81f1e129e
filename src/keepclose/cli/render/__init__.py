"""render: to be described."""
