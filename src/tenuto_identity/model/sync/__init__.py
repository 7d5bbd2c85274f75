"""Decisions of a synchronisation: matching, outbound staging, pending exports, guards, drift, and their explanation."""
