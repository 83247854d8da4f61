"""How a function acts on boxes."""
