"""What a cast rule is."""
