"""Turns what was seen into judged lines. Pure functions, one module per section; none looks at the machine."""
