"""What something came to, as plain data, and its forms: an HTML page, a terminal, JSON. Knows no run and no command."""

from voxelocity.document.blocks import Document
from voxelocity.document.html import write_figures, write_page
from voxelocity.document.terminal import TableView, document_view, section_view

__all__ = ["Document", "TableView", "document_view", "section_view", "write_figures", "write_page"]
