"""Faults on purpose, on a real cluster, for longer than `make test` may take: `make faults`."""
