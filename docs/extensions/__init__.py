"""What the manual's build makes by itself, so that no fact is written twice."""
