"""The LDAP protocol: requests and replies, controls, and the adapter of the library."""
