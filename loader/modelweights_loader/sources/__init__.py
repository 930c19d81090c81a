"""Where checkpoints come from: one module per kind behind `contract.Source`, chosen by `open_source.open_source`.

A source lists files with sizes and hashes and reads ranges of them; what is done with the bytes is `fetch`'s. Heavy
libraries are imported by the one module that needs them. Must not import torch.
"""
