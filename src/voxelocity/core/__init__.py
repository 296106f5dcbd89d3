"""Value types and contracts that travel between the stages. Imports nothing else of this package, and no torch."""
