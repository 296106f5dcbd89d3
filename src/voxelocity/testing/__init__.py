"""What tests share: slow, obviously right references of the fast paths, contracts, means to look on. Not for a run."""
