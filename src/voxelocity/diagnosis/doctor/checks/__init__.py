"""What was seen to judged lines. Pure functions: one module a section, none asks the machine anything."""
