"""What something came to, as plain data, and its forms: an HTML page, a terminal, JSON. Knows no run and no command."""

from voxelocity_observe.document.blocks import Document
from voxelocity_observe.document.html import write_figures, write_page
from voxelocity_observe.document.terminal import TableView, document_view, section_view

__all__ = ["Document", "TableView", "document_view", "section_view", "write_figures", "write_page"]
