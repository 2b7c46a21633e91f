"""A Spec → token files: plan, split, encode, write, resume."""
