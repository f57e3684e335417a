"""What `scripts/bench-full` is made of: the aims, how they are run, and what their figures come to."""
