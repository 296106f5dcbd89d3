"""Facts to a diagnosis: what the rules found, in order, and the one sentence."""
