"""A real Kubernetes cluster for tests and demonstrations, on one Linux machine without a container engine.

Run as ``python -m tests.cluster`` from the repository's root; README.md in this folder tells how it is put together.
"""
