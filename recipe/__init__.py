"""Full-parameter GRPO of Inkling-Small on terminal tasks: one job, two engines."""
