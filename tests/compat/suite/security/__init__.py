"""Secured listeners through real clients and raw sockets: what `tests/compat/security` runs."""
