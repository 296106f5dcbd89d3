"""Changes of values without moving voxels: scaling, contrast, filters, spectra, noise, dropout."""
