"""The explorer: a web application of local pages that show what runs retrieve."""
