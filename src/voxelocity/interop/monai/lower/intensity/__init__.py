"""Changes of values where they are: scaling, contrast, filters, spectra, noise, dropout."""
