"""The load process: everything that runs, or is decided, inside the process that loads tensors.

The rest of the package imports `contract` from here, and `load_errors` the words of `failures`. Modules that import torch do it inside functions:
the import takes seconds, and only the load process, started by `load_process`, pays them.
"""
