"""A page a finding, and what reads them."""
