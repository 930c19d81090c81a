"""Stages a checkpoint on one machine: prefetch, validate, residency, report, wait.

Runs in the staging pods and on a laptop. It must never import kopf, kubernetes or the operator, and this file stays
empty of imports: every command pays for what is imported here.
"""

__version__ = "0.1.0"
