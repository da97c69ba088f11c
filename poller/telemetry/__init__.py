"""What the daemon tells of itself to those who watch it."""
