"""Redis: connections, the embedded server, keys, snapshots, the lease and the one atomic commit."""
