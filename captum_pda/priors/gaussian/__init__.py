"""The Gaussian patch prior."""
