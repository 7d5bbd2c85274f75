"""Dashboard pages and panels of identity synchronisation: each function returns the typed model of a template."""
