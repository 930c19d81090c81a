"""`kubectl modelweights`: says what the operator does with each model on each node, and why something waits.

Reads what an ordinary viewer may read, and writes only for `retry`, `pause` and `resume`. May import `modelweights_operator.api`
and `domain`, and nothing else of the operator.
"""
