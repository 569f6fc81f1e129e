"""Keep the traffic of Kubernetes Services close to its clients, and say what that does."""

__version__ = "0.1.0"
