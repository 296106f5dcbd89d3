"""Models on disk, each format read as data: no code in a model's folder is run unless the user names it."""
