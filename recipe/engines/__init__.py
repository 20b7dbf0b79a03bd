"""The two engines of the one job, loaded by name: neither imports the other."""
