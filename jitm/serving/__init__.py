"""Serving a trained model: a loaded run, an index of images on disk, exact search, and the explorer's pages."""
