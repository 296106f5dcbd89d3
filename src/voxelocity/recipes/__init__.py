"""Complete, named examples that run unchanged. Recipes use the package; nothing in the package uses them."""
