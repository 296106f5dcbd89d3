"""Other toolkits' names and formats over the engine of this one."""
