"""Connectors: the code that reads and writes one kind of store, and the contract that it fulfils."""
