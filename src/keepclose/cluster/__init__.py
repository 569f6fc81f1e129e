"""A whole cluster on one machine: its processes, kept running, and how to speak to them."""
