"""Pure values and decisions: no I/O, no SQL, no clock, no logging."""
