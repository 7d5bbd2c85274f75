"""SQL statements of identity synchronisation and their rows; no decisions.

Statements are set-based: each takes and returns lists. Table names are unqualified, because a preview runs the same
statements on a copy of the tables; `session.begin_page` sets the search path.
"""
