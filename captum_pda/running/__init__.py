"""The loop that hides every region once and keeps the model's scores."""
