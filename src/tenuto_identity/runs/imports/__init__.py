"""Imports: reading a system, confirming its exports and detecting deletions."""
