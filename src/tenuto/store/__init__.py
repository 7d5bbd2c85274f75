"""The only room with SQL: rows to model and back, transactions; no decisions, no loops."""
