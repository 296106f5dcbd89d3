"""A diagnosis shown: the screen of a terminal, the page, the evidence and the words of both.

`wording` has the words, figures and colors that `screen`, `page` and `evidence` share.
"""
