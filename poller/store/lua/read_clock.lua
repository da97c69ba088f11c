-- Reads the store's clock.
-- include now
return now
