"""What the daemon answers over HTTP, a module for each thing that can be asked."""
