"""Programs that benchmarks run as processes of their own: what the loader is compared with, and who disturbs it."""
