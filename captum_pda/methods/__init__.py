"""What a user calls: resolve the arguments, run, return."""
