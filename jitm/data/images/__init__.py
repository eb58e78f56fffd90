"""Photos: files, decoding, cropping, and prepared data sets of them."""
