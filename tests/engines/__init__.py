"""The engines' own argument parsers, to check what `flags` prints and what the operator's ConfigMap carries.

No engine runs here. Of vLLM's and SGLang's released wheels only the Python files are kept, with the few packages that
their argument modules import, in the cache outside of the clone.
"""
