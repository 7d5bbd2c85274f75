"""Commands of identity synchronisation."""
