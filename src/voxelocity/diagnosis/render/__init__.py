"""A diagnosis shown: the screen of a terminal, the page, the evidence and the words of both."""
