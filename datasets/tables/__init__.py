"""Tables of cells: read as text, and written so that a spreadsheet evaluates none."""
