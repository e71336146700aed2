"""What a cast rule is, how one is stated, what follows from it for a call, and who asks for it."""
