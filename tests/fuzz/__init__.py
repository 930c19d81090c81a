"""Fuzzing of the header reader, guided by coverage, with the safetensors library as the judge: `make fuzz`."""
