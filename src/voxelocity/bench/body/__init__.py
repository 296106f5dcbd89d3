"""A cartoon of the upper abdomen: CT-like scans with organs to learn, drawn on the spot, for the demo and for races."""
