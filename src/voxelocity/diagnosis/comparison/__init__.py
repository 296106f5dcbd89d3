"""Two diagnoses of one program side by side: what a change brought, as records, lines and a page."""
