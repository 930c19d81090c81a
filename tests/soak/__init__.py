"""Hours of life in minutes: nodes, objects and the operator come and go, and in the end nothing is left over. `make soak`."""
