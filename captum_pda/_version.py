"""The version, which packaging reads too."""

__version__ = "0.2.0"
