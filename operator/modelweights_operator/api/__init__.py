"""The API of the operator: one module for each served version. Imports nothing of the rest of the package."""
