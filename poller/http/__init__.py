"""How HTTP is spoken to whoever the configuration names: certificates, proxies, and failures worded alike."""
