"""The job on one machine: a tiny Inkling that serves and trains, its session server, rollouts and checkpoints."""
