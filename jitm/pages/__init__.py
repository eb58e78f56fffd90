"""HTML pages, pictures, figures and tables, which commands print and save."""
