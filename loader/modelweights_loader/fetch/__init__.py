"""From a source to verified files on this node: plan, room, lock, download, journal, publication.

Called by `commands.fetch`. Knows sources by `sources.contract` only. Must not import torch.
"""
