"""Measurements on a real cluster, each beside what it is compared with. Run by `make bench`; results in docs/benchmarks.md."""
