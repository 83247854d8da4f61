"""The engine that recomputes only what a window can change."""
