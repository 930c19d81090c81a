"""One module per command of `modelweights-loader`: what it takes, what it does, what it says.

Called by `cli`. Each has `add(commands)`, which adds its arguments, and `run(arguments)`. Heavy modules are imported inside
`run`, so that `wait` starts in milliseconds. Must not import torch.
"""
