"""Rules, events and messages: pure values and decisions."""
