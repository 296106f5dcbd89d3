"""Complete, named examples that can be run as they are. Recipes use the package; nothing in the package uses them."""
