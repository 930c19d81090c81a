"""Decisions: values and `now` in, values out. No kopf, no I/O, no clock."""
