"""One command a file: what it takes, what it asks of the rooms below, and how it answers. `tilewright.cli` lists them."""
