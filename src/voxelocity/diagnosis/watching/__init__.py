"""A command run under the recorder: whether it can be, how it is, and what the machine did meanwhile."""
