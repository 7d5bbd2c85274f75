"""Pure values and decisions of identity synchronisation: no input, output or clock."""
