"""From facts to a diagnosis: the findings in order, and the verdict in one sentence."""
