"""Shows a record: figures and charts from its samples, on a page, in a picture and in a few lines."""
