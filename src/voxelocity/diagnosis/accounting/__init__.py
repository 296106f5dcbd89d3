"""Where the watched time went: what of a recording counts, and how it divides. Judges nothing."""
