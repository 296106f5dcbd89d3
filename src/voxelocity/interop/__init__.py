"""Other toolkits' names and formats on top of this package's engine."""
