"""The API: what it is asked, what its answers mean, and the round that drains it into the store."""
