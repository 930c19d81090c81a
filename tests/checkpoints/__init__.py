"""Makes real and synthetic checkpoints, and broken copies of them, for all tiers of tests.

Standard library only, so that it runs where torch is not installed.
"""
