"""Delta import: where the changes of a directory are found."""
