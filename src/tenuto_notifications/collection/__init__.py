"""Collection of events and creation of messages, in scheduler processes."""
