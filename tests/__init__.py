"""Tests by tier, and what they stand on: clusters, images, checkpoints. Imported as `tests.…` from the root."""
