"""What the program tells of itself while it runs: measures, and traces where they are wanted."""
