"""The ModelWeights operator: stages checkpoints on GPU nodes before the pods that need them start."""
