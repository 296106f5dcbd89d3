"""Brain tumors in MR: four contrasts, three classes that overlap, scored by the rule of the BraTS challenge too."""
