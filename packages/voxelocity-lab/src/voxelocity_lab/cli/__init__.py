"""The command line: one module per command, no logic. Importing it imports neither torch nor MONAI."""
