"""Several processes that share work."""
