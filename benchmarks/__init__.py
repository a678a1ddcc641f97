"""How true and how cheap a client is, against a server of known truth. Run by `make bench`; not part of the package."""
