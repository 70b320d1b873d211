"""How events and values are shown to people, on a terminal and on a page."""
