"""Sync rules and their evaluation: scope, expressions, and the values that a mapping gives."""
