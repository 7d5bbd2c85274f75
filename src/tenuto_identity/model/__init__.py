"""The pure part of identity synchronisation: values, rules and decisions, without input or output."""
