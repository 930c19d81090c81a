"""Servers that the tests of sources read from; each listens on loopback, unless told otherwise."""
