"""From a model and its arguments to scores, and from scores to measures."""
