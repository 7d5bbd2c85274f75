"""Where the servers of a database are, and connections to the one that has the wanted role."""
