"""The operator's own cost with hundreds of nodes and a thousand objects: `python -m tests.bench scale`."""
