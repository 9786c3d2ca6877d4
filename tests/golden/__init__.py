"""Files that a release has written, and that every later one must read."""
