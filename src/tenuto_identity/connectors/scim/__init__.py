"""The SCIM 2.0 connector (RFC 7643 and RFC 7644)."""
