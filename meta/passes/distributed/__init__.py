"""Programs of many ranks: parts of arrays, and when they are exchanged."""
