"""Whole data sets, and the folders with their results."""
