"""The command line: one module a command, no logic. Importing it imports neither torch nor MONAI."""
