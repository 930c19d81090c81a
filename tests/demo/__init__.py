"""`make demo`: the whole of it once, on a real cluster, with a real checkpoint."""
