"""Use cases of identity synchronisation: permission, transaction, audit entry, typed result."""
