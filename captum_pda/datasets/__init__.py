"""Whole data sets, and the folders that hold their results."""
