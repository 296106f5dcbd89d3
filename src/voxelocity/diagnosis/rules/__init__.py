"""Facts to findings, one module a family; each rule is a pure function."""
