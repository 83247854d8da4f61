"""What is hidden at once, and how values of regions become a map."""
