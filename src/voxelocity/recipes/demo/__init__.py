"""The demonstration: phantoms made on the spot, and the plain script that a fast run is compared with."""
