"""Faults between the operator and the API server: these need no kubelets, and run in two processes."""
