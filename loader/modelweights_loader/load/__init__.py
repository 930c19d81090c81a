"""The load process: everything that runs, or is decided, inside the process that loads tensors.

`contract` is all that the rest of the package may import from here. Modules that import torch do it inside functions:
the import takes seconds, and only the load process, started by `load_process`, pays them.
"""
