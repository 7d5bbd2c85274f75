"""Values of access: actors, contexts of operations, the audit chain and references to secrets."""
