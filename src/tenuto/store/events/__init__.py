"""Rows of events from outside, of the waits for them, and of approvals."""
