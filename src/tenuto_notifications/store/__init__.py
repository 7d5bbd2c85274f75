"""SQL statements and their rows; no decisions."""
