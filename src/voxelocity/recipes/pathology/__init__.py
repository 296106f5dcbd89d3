"""Tumor in slides of tissue: a patch classifier, heat maps of whole slides, and lesions found in them."""
