"""Changes of pairs of images and captions, and negatives for them."""
