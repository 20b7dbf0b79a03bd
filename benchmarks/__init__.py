"""The local engine's speed beside what the libraries offer: `python -m benchmarks` (`make bench`)."""
