"""The LDAP connector: OpenLDAP, Active Directory and other LDAPv3 directories as sources and targets."""
