"""Routes of identity synchronisation, under ``/api/v1/identity``."""
